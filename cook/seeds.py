"""First contents of the weight buffer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cook.model import ModelConfig


def draw_weights(model: ModelConfig) -> NDArray[np.float32]:
    """The seed weights, WBuf layout, shape (weights,).

    One NumPy generator (PCG64, seeded with ``model.seed``) draws every slot from U(-bound, bound) in WBuf order, in
    float64, rounded to float32; slots without a bound take their fill and draw nothing. Unused floats stay 0.
    """
    generator = np.random.Generator(np.random.PCG64(model.seed))
    weights = np.zeros(model.weights, np.float32)
    for slot in model.slots():
        values = generator.uniform(-slot.bound, slot.bound, slot.size) if slot.bound else np.full(slot.size, slot.fill)
        weights[slot.offset : slot.offset + slot.size] = values
    return weights
