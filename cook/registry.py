"""The recipes that cook knows by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from traceback import extract_tb
from types import FunctionType

from convtrain.errors import ConvtrainError, InputError
from convtrain.graph import builder
from convtrain.graph.builder import Graph, GraphError
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
    """The ``build`` function of a recipe. Raises InputError for an unknown name or a file that is no Python."""
    if name not in _MODULES:
        raise InputError(f"There is no recipe '{name}': choose one of {', '.join(_MODULES)}.")
    with _blaming_the_recipe():
        recipe: Recipe = import_module(_MODULES[name]).build
    return recipe


def build_graphs(recipe: Recipe, model: ModelConfig) -> Sequence[Graph]:
    """The plans of a model. Raises InputError, with file and line, for a recipe that fails."""
    with _blaming_the_recipe():
        graphs: object = recipe(model)
    if not isinstance(graphs, Sequence) or not graphs or not all(isinstance(graph, Graph) for graph in graphs):
        code = recipe.__code__ if isinstance(recipe, FunctionType) else None
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
        raise InputError(f"The recipe{where} must return a list of graphs, at least one, and it returned {graphs!r}.")
    return graphs


@contextmanager
def _blaming_the_recipe() -> Iterator[None]:
    """Turn whatever goes wrong in a recipe into a sentence that names its line."""
    try:
        yield
    except ConvtrainError:
        raise
    except SyntaxError as error:
        raise InputError(f"{error.filename}:{error.lineno} is not Python: {error.msg}.") from error
    except Exception as error:
        # The line that called the graph's methods is the recipe's, not theirs.
        made = (builder.__file__, "<string>")  # the latter: dataclasses' own functions
        frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename not in made]
        what = str(error) if isinstance(error, GraphError) else f"{type(error).__name__}: {error}"
        raise InputError(f"{frames[-1].filename}:{frames[-1].lineno}: {what.rstrip('.')}.") from error
