"""Typed access to a container's manifest.

The digest at the end of a container excludes accidents, so what fails here was written by another program, or by
another version of this one: the reader still gets one sentence, never a traceback from deep inside.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from convtrain.errors import InputError
from convtrain.files.container import Container

T = TypeVar("T")


def unusable(container: Container, why: str) -> InputError:
    """The error for a manifest that is whole but makes no sense: ``why`` continues "its manifest"."""
    return InputError(
        f"{container.path} cannot be used: its manifest {why}. "
        "It was not written by this version of convtrain: make it again."
    )


def entry(container: Container, key: str, hint: type[T]) -> T:
    """The manifest's value at ``key``. Raises InputError when it is missing or does not have the type ``hint``."""
    value: Any = container.manifest.get(key)
    if not fits(value, hint):
        raise unusable(container, f"has no valid {key!r}")
    return value  # type: ignore[no-any-return]


def fits(value: Any, hint: Any) -> bool:
    """Whether ``value`` has the type ``hint``, all the way down.

    Knows dataclasses, enums, unions, tuples, mappings and lists, which is all that a plan or a manifest consists of.
    An int passes for a float; a bool never passes for an int.
    """
    if hint is int or hint is str or hint is bool:  # nearly all of a plan: quickly, before the general rules
        return type(value) is hint
    if hint is float:
        return type(value) is float or type(value) is int
    if hint is Any:
        return True
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, arg) for arg in args)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if args[-1:] == (Ellipsis,):
            return all(fits(item, args[0]) for item in value)
        return len(value) == len(args) and all(map(fits, value, args))
    if origin is list:
        return isinstance(value, list) and all(fits(item, args[0]) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(fits(k, args[0]) and fits(v, args[1]) for k, v in value.items())
    if is_dataclass(hint):
        known: Any = hint
        return type(value) is hint and all(fits(getattr(value, name), kind) for name, kind in _hints(known))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return type(value) is hint
    return isinstance(value, hint)


def misfit(value: Any) -> str | None:
    """What is wrong with the first field of a dataclass's instance that does not have its type; None if all do."""
    known: Any = type(value)
    for name, kind in _hints(known):
        if not fits(getattr(value, name), kind):
            return f"its {name} has the wrong type"
    return None


@cache
def _hints(kind: Any) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(kind)
    return tuple((item.name, hints[item.name]) for item in fields(kind))
