"""The built-in recipe: a sine network with depthwise convolutions that learns one image."""

from __future__ import annotations

from collections.abc import Sequence

from convtrain.graph.builder import Graph
from cook.model import ModelConfig
from cook.recipes.fused import Fused, is_fusable
from cook.recipes.fused_scalar import FusedScalar, is_plane_wave
from cook.recipes.reference import Reference


def build(model: ModelConfig) -> Sequence[Graph]:
    """The plans of the recipe: ``reference`` for any model, the fused ones for those that their kernels suit."""
    plans: list[type[Reference]] = [Reference]
    if is_plane_wave(model):
        plans.append(FusedScalar)
    if is_fusable(model):
        plans.append(Fused)
    return [plan(model).build() for plan in plans]
