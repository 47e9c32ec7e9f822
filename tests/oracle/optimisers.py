"""Adam and Muon, one step each, in place on NumPy arrays."""

from __future__ import annotations

import numpy as np

from .layout import Array

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def adam(p: Array, g: Array, m: Array, v: Array, *, lr: float, step: int) -> None:
    """Adam (Kingma and Ba 2015) in torch's arrangement. ``step`` counts from 1; p, m, v are updated in place."""
    beta1, beta2, eps = 0.9, 0.999, 1e-8
    m[:] = beta1 * m + (1 - beta1) * g
    v[:] = beta2 * v + (1 - beta2) * g**2
    denominator = np.sqrt(v) / np.sqrt(1 - beta2**step) + eps
    p -= lr / (1 - beta1**step) * m / denominator


def orthogonalise(b: Array, steps: int = 5) -> Array:
    """A nearly orthogonal matrix near ``b`` (rows ≤ columns): Muon's Newton–Schulz iteration (Jordan et al. 2024)."""
    a0, a1, a2 = NEWTON_SCHULZ
    x = b / (np.linalg.norm(b) + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a0 * x + (a1 * gram + a2 * gram @ gram) @ x
    return x


def muon(p: Array, g: Array, b: Array, *, lr: float, scale: float = 25.0) -> None:
    """Muon for a tall matrix p (rows ≥ columns), without look-ahead. p and the momentum b are updated in place."""
    b[:] = 0.95 * b + g
    p -= scale * lr * orthogonalise(b.T).T
