"""Whether values read from JSON are of the types that a dataclass declares."""

from __future__ import annotations

from dataclasses import fields
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

LARGEST = 1e18  # of a number that means something here


def check(made: Any) -> None:
    """Raise TypeError where a field of a dataclass's instance holds what it does not declare. Numbers are finite."""
    kinds = get_type_hints(type(made))
    for item in fields(made):
        if not fits(getattr(made, item.name), kinds[item.name]):
            raise TypeError(f"{item.name} of a {type(made).__name__} is not {item.type}")


def fits(value: Any, kind: Any) -> bool:
    """True where a value is of a type, as far as annotations of plain data go."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if kind in (int, float):
        known = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
        return known and -LARGEST <= value <= LARGEST
    if origin is list or (origin is tuple and parts[-1] is ...):
        return isinstance(value, origin) and all(fits(item, parts[0]) for item in value)
    if origin is tuple:
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(fits, value, parts))
    if origin is dict:
        return isinstance(value, dict) and all(fits(k, parts[0]) and fits(v, parts[1]) for k, v in value.items())
    return isinstance(value, kind)
