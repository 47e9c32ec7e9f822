"""What the reference passes move and compute, declared for reports and for splitting submits.

``nbytes`` is the traffic of a perfect cache: each input read once, each output written once, 4 bytes an element.
``flops`` counts a multiplication and an addition as two operations and a sine or cosine as 20.
"""

from __future__ import annotations

from typing import TypedDict

from cook.model import SSIM_TAPS, ModelConfig

SINE = 20


class Work(TypedDict):
    """What ``Graph.add`` takes of a pass's cost."""

    nbytes: int
    flops: int


class Cost:
    """The declared cost of each kind of pass for one model."""

    def __init__(self, model: ModelConfig) -> None:
        self._model = model
        self._features = model.nf * model.padded_pixels
        self._image = 3 * model.height * model.width

    def kern(self) -> Work:
        model = self._model
        taps = model.nf * model.taps
        return {"nbytes": 4 * (taps + model.nf * model.kn), "flops": taps * model.kn * (SINE + 6)}

    def stem(self) -> Work:
        return {"nbytes": 8 * self._features, "flops": self._features * (SINE + 5)}

    def depthwise(self) -> Work:
        return {"nbytes": 8 * self._features, "flops": 2 * self._features * self._model.taps}

    def copy(self, elements: int) -> Work:
        return {"nbytes": 8 * elements, "flops": elements}

    def reduce(self, parts: int, elements: int) -> Work:
        return {"nbytes": 4 * (parts + 1) * elements, "flops": parts * elements}

    def gemm(self) -> Work:
        model = self._model
        return {"nbytes": 12 * self._features, "flops": 2 * model.mix_size * model.padded_pixels}

    def pointwise(self, reads: int, writes: int) -> Work:
        return {"nbytes": 4 * (reads + writes) * self._features, "flops": self._features * max(1, writes) * SINE}

    def head(self) -> Work:
        return {"nbytes": 4 * (self._features + self._image), "flops": 2 * self._image * self._model.nf}

    def lossgrad(self) -> Work:
        return {"nbytes": 12 * self._image, "flops": 30 * self._image}

    def ssim_forward(self) -> Work:
        return {"nbytes": 4 * 5 * self._image, "flops": self._image * (2 * SSIM_TAPS * 16 + 30)}

    def ssim_add(self) -> Work:
        return {"nbytes": 4 * 7 * self._image, "flops": self._image * (2 * SSIM_TAPS * 9 + 10)}

    def adam(self, elements: int) -> Work:
        return {"nbytes": 4 * 7 * elements, "flops": 15 * elements}

    def matrix(self, outputs: int, reduction: int) -> Work:
        return {"nbytes": 12 * outputs, "flops": 2 * outputs * reduction}
