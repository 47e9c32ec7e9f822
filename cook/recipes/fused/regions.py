"""Where the fused plan computes: the pixels that the loss can see, and how they are stored and cut into tiles.

The value of a feature map matters only as far from the image as the layers above it reach, at most HALO. Maps are
stored in blocks of 16 x 4 pixels (see ``slang/fused/map.slang``), each a pair of strips wide and a band high.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from cook.model import ModelConfig
from cook.recipes.reference.base import ceil_div

STRIP, PAIR = 8, 16  # columns of a strip, and of a pair of strips
BAND = 4  # rows of a band
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
        return self.x0 // STRIP

    @property
    def strips(self) -> int:
        return ceil_div(self.x1, STRIP) - self.strip0

    @property
    def odd_strip0(self) -> int:
        """The strip before the region's blocks, the right one of its own."""
        return 2 * self.pair0 - 1

    @property
    def odd_strips(self) -> int:
        """From there to the end of the region's blocks."""
        return 2 * (self.pair0 + self.pairs) - self.odd_strip0

    @property
    def pair0(self) -> int:
        return self.x0 // PAIR

    @property
    def pairs(self) -> int:
        return ceil_div(self.x1, PAIR) - self.pair0

    @property
    def band0(self) -> int:
        return self.y0 // BAND

    @property
    def bands(self) -> int:
        return ceil_div(self.y1, BAND) - self.band0

    @property
    def tiles(self) -> int:
        """Blocks that the region touches."""
        return self.pairs * self.bands

    @property
    def rows(self) -> int:
        return self.y1 - self.y0

    @property
    def box(self) -> Values:
        return {"X0": self.x0, "X1": self.x1, "Y0": self.y0, "Y1": self.y1}


class Regions:
    """The regions of one model, and the size of its maps."""

    def __init__(self, model: ModelConfig) -> None:
        self._model = model
        self._reach = min(model.halo, model.radius * (model.layers - 1))
        # The depthwise kernels read the block left of a region's, and want the image to begin with a block.
        self.origin_x = PAIR * (1 + ceil_div(self._reach, PAIR))
        self.origin_y = BAND * ceil_div(self._reach + model.radius, BAND)

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
    def pairs(self) -> int:
        """As many as the last block of any layer reaches."""
        return max(item.pair0 + item.pairs for item in self._all)

    @cached_property
    def bands(self) -> int:
        """As many as the last block of any layer reaches."""
        return max(item.band0 + item.bands for item in self._all)

    @property
    def elements(self) -> int:
        """Numbers in one feature map."""
        return self.pairs * self.bands * PAIR * BAND * self._model.nf

    @property
    def geometry(self) -> Values:
        return {"PAIRS": self.pairs, "BANDS": self.bands, "FEATURES": self._model.nf}

    @property
    def origin(self) -> Values:
        return {"ORIGIN_X": self.origin_x, "ORIGIN_Y": self.origin_y}
