"""Where the fused plan computes: the pixels that the loss can see, and how they are stored and cut into tiles.

The value of a feature map matters only as far from the image as the layers above it reach, at most HALO. Maps are
stored in 8 x 8 blocks (see ``slang/fused/map.slang``), with a margin wide enough for any tile and its neighbourhood.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from cook.model import ModelConfig
from cook.recipes.reference.base import ceil_div

BLOCK = 8  # columns of a strip, rows of a block
TILE_ROWS = 32  # rows of a tile of the depthwise kernels
Values = dict[str, int]


@dataclass(frozen=True)
class Region:
    """A rectangle of map coordinates: columns ``x0`` to ``x1``, rows ``y0`` to ``y1`` (exclusive)."""

    x0: int
    x1: int
    y0: int
    y1: int

    @property
    def strip0(self) -> int:
        return self.x0 // BLOCK

    @property
    def strips(self) -> int:
        return ceil_div(self.x1, BLOCK) - self.strip0

    @property
    def block0(self) -> int:
        return self.y0 // BLOCK

    @property
    def blocks(self) -> int:
        return ceil_div(self.y1, BLOCK) - self.block0

    @property
    def rows(self) -> int:
        return self.y1 - self.y0

    @property
    def box(self) -> Values:
        return {"X0": self.x0, "X1": self.x1, "Y0": self.y0, "Y1": self.y1}


class Regions:
    """The regions of one model, and the size of its maps."""

    def __init__(self, model: ModelConfig, span: int) -> None:
        self._model = model
        self._span = span
        self._reach = min(model.halo, model.radius * (model.layers - 1))
        self.origin_x = BLOCK * (ceil_div(self._reach, BLOCK) + 1)
        self.origin_y = BLOCK * ceil_div(self._reach + model.radius, BLOCK)

    def _around(self, reach: int) -> Region:
        model = self._model
        reach = min(model.halo, reach)
        return Region(
            self.origin_x - reach,
            self.origin_x + model.width + reach,
            self.origin_y - reach,
            self.origin_y + model.height + reach,
        )

    def features(self, layer: int) -> Region:
        """Where h of this layer counts: layer LAYERS is the head's."""
        return self._around(self._model.radius * (self._model.layers - layer))

    @cached_property
    def _all(self) -> list[Region]:
        return [self.features(layer) for layer in range(1, self._model.layers + 1)]

    @cached_property
    def widest(self) -> Region:
        """Where the first layer's output counts, and with it the stem's features and their convolution."""
        return self.features(1)

    @cached_property
    def strips(self) -> int:
        """As many as the last tile of any layer reaches, and one more."""
        return max(item.strip0 + ceil_div(item.strips, self._span) * self._span for item in self._all) + 1

    @cached_property
    def blocks(self) -> int:
        """As many as the last tile of any layer reaches with its neighbourhood."""
        last = max(item.y0 + ceil_div(item.rows, TILE_ROWS) * TILE_ROWS for item in self._all)
        return ceil_div(last + self._model.radius, BLOCK)

    @property
    def elements(self) -> int:
        """Numbers in one feature map."""
        return self.strips * self.blocks * BLOCK * BLOCK * self._model.nf

    @property
    def geometry(self) -> Values:
        return {"STRIPS": self.strips, "BLOCKS": self.blocks, "FEATURES": self._model.nf}

    @property
    def origin(self) -> Values:
        return {"ORIGIN_X": self.origin_x, "ORIGIN_Y": self.origin_y}
