"""The flat weight vector as tensors: one split, so that its gradient comes back as one concatenation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.problem import Problem


@dataclass(frozen=True)
class Weights:
    """Views of the flat weight vector, all float32."""

    kern_w1: Tensor  # (KN, 2)
    kern_b1: Tensor  # (KN,)
    kern_w2: Tensor  # (NF, KN)
    kern_b2: Tensor  # (NF,)
    stem_w: Tensor  # (NF, 2)
    stem_b: Tensor  # (NF,)
    dw_b: Tensor  # (NF,)
    mix: Tensor  # (LAYERS, 2NF, NF)
    head_w: Tensor  # (3, NF)
    head_b: Tensor  # (3,)


def split(flat: Tensor, problem: Problem) -> Weights:
    """The named weights of a flat vector in the archive's layout."""
    slots = problem.slots()
    before = [slot for slot in slots if not slot.name.startswith("mix.")]
    mix = problem.layers * 2 * problem.nf * problem.nf
    sizes = [slot.size for slot in before]
    shapes = [slot.shape for slot in before]
    shapes.insert(-2, (problem.layers, 2 * problem.nf, problem.nf))
    parts = torch.split(flat, [*sizes[:-2], mix, *sizes[-2:]])
    named = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
    named[-1] = named[-1][:3]
    return Weights(*named)


def mix_span(problem: Problem) -> slice:
    """Where the mixing matrices stand in the flat vector: what Muon updates; Adam has the rest."""
    start = next(slot.offset for slot in problem.slots() if slot.name == "mix.0")
    return slice(start, start + problem.layers * 2 * problem.nf * problem.nf)
