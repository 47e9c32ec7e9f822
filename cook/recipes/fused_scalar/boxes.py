"""Where the scalar fused plan computes: the pixels that the loss can see, in quads of four neighbours in a row.

The value of a feature map matters only as far from the image as the layers above it reach. Maps are as large as the
widest of these boxes, with a margin for what the depthwise kernels read beside it (``slang/fused/scalar/map.slang``).
"""

from __future__ import annotations

from dataclasses import dataclass

from cook.model import ModelConfig
from cook.recipes.reference.base import ceil_div

QUAD = 4
SPAN = 2  # quads that an invocation of a depthwise kernel walks down
Values = dict[str, int]


@dataclass(frozen=True)
class Box:
    """A rectangle of a map: ``quads`` from ``quad0`` on in ``rows`` rows from ``row0`` on."""

    quad0: int
    quads: int
    row0: int
    rows: int

    @property
    def size(self) -> int:
        return self.quads * self.rows

    @property
    def strips(self) -> int:
        """Invocations of a depthwise kernel side by side."""
        return ceil_div(self.quads, SPAN)

    @property
    def values(self) -> Values:
        return {"QUAD0": self.quad0, "QUADS": self.quads, "ROW0": self.row0, "ROWS": self.rows}


class Boxes:
    """The boxes of one model, and the size of its maps."""

    def __init__(self, model: ModelConfig) -> None:
        self._model = model
        self._beside = ceil_div(model.radius, QUAD)
        widest = model.radius * (model.layers - 1)
        self.row0 = widest  # where the image begins
        self.column0 = QUAD * (ceil_div(widest, QUAD) + self._beside)

    def features(self, layer: int) -> Box:
        """Where h of this layer counts: layer LAYERS is the head's."""
        model = self._model
        reach = model.radius * (model.layers - layer)
        quad0 = (self.column0 - reach) // QUAD
        quads = ceil_div(self.column0 + model.width + reach, QUAD) - quad0
        return Box(quad0, quads, self.row0 - reach, model.height + 2 * reach)

    @property
    def widest(self) -> Box:
        """Where the first layer's output counts, and with it the stem's features and their convolution."""
        return self.features(1)

    @property
    def quads(self) -> int:
        """In a row of a map."""
        boxes = [self.features(layer) for layer in range(1, self._model.layers + 1)]
        return max(box.quad0 + box.strips * SPAN for box in boxes) + self._beside

    @property
    def elements(self) -> int:
        """Numbers in one feature map."""
        return QUAD * self.quads * self.widest.rows * self._model.nf

    @property
    def geometry(self) -> Values:
        return {"QUADS": self.quads, "FEATURES": self._model.nf}

    @property
    def origin(self) -> Values:
        return {"COLUMN": self.column0, "ROW": self.row0}
