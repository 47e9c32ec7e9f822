"""The built-in recipe: a sine network with depthwise convolutions that learns one image."""

from __future__ import annotations

from collections.abc import Sequence

from convtrain.graph.builder import Graph
from cook.model import ModelConfig
from cook.recipes.fused import Fused, is_fusable
from cook.recipes.reference import Reference


def build(model: ModelConfig) -> Sequence[Graph]:
    """The plans of the recipe: ``reference`` for any model, ``fused`` for those that its kernels suit."""
    plans: list[type[Reference]] = [Reference, Fused] if is_fusable(model) else [Reference]
    return [plan(model).build() for plan in plans]
