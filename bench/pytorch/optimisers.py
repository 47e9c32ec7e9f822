"""Adam and Muon as plain tensor arithmetic: every scalar that changes is a tensor, so a CUDA graph can replay it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
MOMENTUM = 0.95
NEWTON_SCHULZ, STEPS = (3.4445, -4.7750, 2.0315), 5


def adam(g: Tensor, m: Tensor, v: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Adam's direction (to be scaled by lr) and the new moments; ``step`` is a float32 scalar that counts from 1."""
    m = BETA1 * m + (1 - BETA1) * g
    v = BETA2 * v + (1 - BETA2) * g * g
    correction1 = -torch.expm1(step * math.log(BETA1))  # 1 - β₁ᵗ without cancellation
    correction2 = -torch.expm1(step * math.log(BETA2))
    return m / correction1 / (v.sqrt() / correction2.sqrt() + EPSILON), m, v


def orthogonalise(b: Tensor) -> Tensor:
    """Muon's Newton–Schulz iteration on a batch of wide matrices (L, rows ≤ columns): nearly orthogonal rows."""
    a0, a1, a2 = NEWTON_SCHULZ
    x: Tensor = b / (torch.linalg.vector_norm(b, dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(STEPS):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=a1, alpha=a2), x, beta=a0)
    return x


def muon(g: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Muon's direction (to be scaled) for tall matrices (L, 2NF, NF), without look-ahead, and the new momentum."""
    b = MOMENTUM * b + g
    return orthogonalise(b.mT).mT, b
