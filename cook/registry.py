"""The recipes that cook knows by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from convtrain.errors import InputError
from convtrain.graph.builder import Graph
from cook.model import ModelConfig

Recipe = Callable[[ModelConfig], Sequence[Graph]]
"""Builds the plans of a model. Seeds it may name in ``data`` ports: ``weights`` (WBuf) and ``target`` (H, W, 3)."""

CONVSIREN = "convsiren"
_MODULES = {CONVSIREN: "cook.recipes.convsiren"}


def left_out(name: str, model: ModelConfig) -> Mapping[str, str]:
    """The plans that a recipe has for other models than this one, each with the reason. Empty for most recipes."""
    explain: Callable[[ModelConfig], Mapping[str, str]] | None
    explain = getattr(import_module(_MODULES[name]), "left_out", None)
    return {} if explain is None else explain(model)


def find_recipe(name: str) -> Recipe:
    """The ``build`` function of a recipe. Raises InputError for an unknown name."""
    if name not in _MODULES:
        raise InputError(f"There is no recipe '{name}': choose one of {', '.join(_MODULES)}.")
    recipe: Recipe = import_module(_MODULES[name]).build
    return recipe
