"""The built-in recipe: a sine network with depthwise convolutions that learns one image."""

from __future__ import annotations

from collections.abc import Sequence

from convtrain.graph.builder import Graph
from cook.model import ModelConfig
from cook.recipes.reference import Reference
from cook.recipes.reference.update import NEWTON_SCHULZ_STEPS, ring_port

__all__ = ["NEWTON_SCHULZ_STEPS", "Reference", "build", "ring_port"]


def build(model: ModelConfig) -> Sequence[Graph]:
    """The plans of the recipe."""
    return [Reference(model).build()]
