"""The built-in recipe: a sine network with depthwise convolutions that learns one image."""

from __future__ import annotations

from collections.abc import Sequence

from convtrain.errors import InputError
from convtrain.graph.builder import Graph
from cook.model import ModelConfig
from cook.recipes.fused import Fused, unfit
from cook.recipes.fused_scalar import FusedScalar, not_plane_waves
from cook.recipes.reference import Reference


def build(model: ModelConfig) -> Sequence[Graph]:
    """The plans of the recipe: ``reference`` for any model, the fused ones for those that their kernels suit.

    Raises InputError for a setting that none of them would heed.
    """
    absent = left_out(model)
    if model.fine and Fused.name in absent:
        raise InputError(
            f"fine=1 changes plan {Fused.name} alone, and this model goes without that plan: {absent[Fused.name]}. "
            "Leave fine out."
        )
    plans: tuple[type[Reference], ...] = (Reference, FusedScalar, Fused)
    return [plan(model).build() for plan in plans if plan.name not in absent]


def left_out(model: ModelConfig) -> dict[str, str]:
    """The plans that ``build`` leaves out, and why."""
    reasons = {FusedScalar.name: not_plane_waves(model), Fused.name: unfit(model)}
    return {name: reason for name, reason in reasons.items() if reason is not None}
