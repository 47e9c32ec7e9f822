"""Constant injection: shader sources carry marked constants, and cook fills them in.

A line ``// NAME`` directly above ``namespace NAME { … }`` is an injection point. The namespace holds nothing but fields
(``static const int A = 0;``, also ``uint`` and ``float``) and comments; every field starts as 0, which never works::

    // dims
    namespace dims { static const int WIDTH = 0; static const float SCALE = 0; }

Constants come in two forms. A *pack* is a set to pick from: every field must be in the pack. *Values* are exact: every
field has a value, and every value a field. Includes (``#include "x.slang"``) are flattened first, once per file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from convtrain.errors import InputError

Constants = Mapping[str, int | float]

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"\s*(?://.*)?$')
_ANNOTATION = re.compile(
    r"^[ \t]*//[ \t]*(?P<mark>[A-Za-z_]\w*)[ \t]*\n[ \t]*namespace\s+(?P<name>\w+)\s*\{", re.MULTILINE
)
_NAMESPACE = re.compile(r"\bnamespace\s+(?P<name>\w+)\s*\{")
_FIELD = re.compile(r"static\s+const\s+(?P<type>\w+)\s+(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>[^;]*);")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ZERO = re.compile(r"0(\.0*)?[uf]?")
_RANGES = {"int": (-(2**31), 2**31 - 1), "uint": (0, 2**32 - 1)}
_FLOAT_MAX = 3.4028234663852886e38


class InjectionError(InputError):
    """A shader source and its constants do not match. The message begins with file and line."""


@dataclass(frozen=True)
class Source:
    """Flattened text with ``#line`` directives, and where each of its lines comes from: (file, line)."""

    name: str
    text: str
    origins: tuple[tuple[str, int], ...]

    def where(self, offset: int) -> str:
        """``file:line`` of a character of the text."""
        file, line = self.origins[self.text.count("\n", 0, offset)]
        return f"{file}:{line}"


def flatten(name: str, roots: Sequence[Path]) -> Source:
    """The file ``name`` under one of ``roots``, with its includes in place, each file once.

    An include is looked up beside the file that names it, then under every root. Raises InjectionError for a file
    that is not there or is not UTF-8 text.
    """
    lines: list[str] = []
    origins: list[tuple[str, int]] = []
    seen: set[Path] = set()

    def emit(text: str, file: str, line: int) -> None:
        lines.append(text)
        origins.append((file, line))

    def walk(path: Path, asked_by: str) -> None:
        file = _display(path, roots)
        seen.add(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InjectionError(f"{asked_by}: {file} cannot be read ({error}).") from error
        emit(f'#line 1 "{file}"', file, 1)
        for number, line in enumerate(text.splitlines(), start=1):
            match = _INCLUDE.match(line)
            if match is None:
                emit(line, file, number)
                continue
            inner = _find(match[1], [path.parent, *roots])
            if inner is None:
                raise InjectionError(f"{file}:{number}: there is no {match[1]} to include.")
            if inner not in seen:
                walk(inner, f"{file}:{number}")
                emit(f'#line {number + 1} "{file}"', file, number + 1)
            else:
                emit("", file, number)

    start = _find(name, roots)
    if start is None:
        raise InjectionError(f"There is no shader source {name} in {', '.join(str(root) for root in roots)}.")
    walk(start, name)
    return Source(name, "\n".join(lines) + "\n", tuple(origins))


def inject(source: Source, packs: Mapping[str, Constants], values: Mapping[str, Constants]) -> str:
    """The source's text with every marked field filled in.

    ``packs`` and ``values`` are constants by annotation name. Raises InjectionError, with file and line, for a field
    that is unknown, missing, injected twice or of another type than its value, for an annotation without constants,
    and for constants without an annotation.
    """
    both = sorted(set(packs) & set(values))
    if both:
        raise InjectionError(f"{source.name}: '{both[0]}' is given both as a pack and as single values.")
    bare = _COMMENT.sub(_blank, source.text)
    _check_annotated(source, bare, {*packs, *values})
    first: dict[tuple[str, str], str] = {}
    pieces: list[str] = []
    done = 0
    for match in _ANNOTATION.finditer(source.text):
        where = source.where(match.start())
        mark = match["mark"]
        if mark != match["name"]:
            raise InjectionError(f"{where}: annotation '{mark}' stands above namespace '{match['name']}'.")
        constants = packs.get(mark, values.get(mark))
        if constants is None:
            raise InjectionError(f"{where}: nothing is injected into annotation '{mark}'.")
        end = bare.find("}", match.end())
        if end < 0:
            raise InjectionError(f"{where}: namespace '{mark}' has no closing brace.")
        _check_body(source, bare, mark, match.end(), end)
        for field in _FIELD.finditer(bare, match.end(), end):
            spot = source.where(field.start())
            key = (mark, field["name"])
            if key in first:
                raise InjectionError(f"{spot}: '{mark}::{key[1]}' is injected twice, first in {first[key]}.")
            first[key] = spot
            if not _ZERO.fullmatch(field["value"].strip()):
                raise InjectionError(f"{spot}: '{mark}::{key[1]}' must start as 0, and is {field['value'].strip()}.")
            if key[1] not in constants:
                known = "the pack" if mark in packs else "the given values"
                raise InjectionError(f"{spot}: '{mark}::{key[1]}' is unknown: {known} has no such constant.")
            literal = _literal(constants[key[1]], field["type"], f"{spot}: '{mark}::{key[1]}'")
            pieces += [source.text[done : field.start("value")], literal]
            done = field.end("value")
    _check_all_used(source, values, first)
    return "".join([*pieces, source.text[done:]])


def _check_annotated(source: Source, bare: str, names: set[str]) -> None:
    """A namespace named like an injection point but without its annotation would keep its zeros."""
    marked = {match.end() for match in _ANNOTATION.finditer(source.text)}
    for match in _NAMESPACE.finditer(bare):
        if match["name"] in names and match.end() not in marked:
            name = match["name"]
            raise InjectionError(f"{source.where(match.start())}: '// {name}' is missing above namespace '{name}'.")


def _check_body(source: Source, bare: str, mark: str, start: int, end: int) -> None:
    stray = re.search(r"\S", _FIELD.sub(_blank, bare[start:end]))
    if stray is not None:
        raise InjectionError(
            f"{source.where(start + stray.start())}: namespace '{mark}' may hold only fields such as "
            "'static const int NAME = 0;'."
        )


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _check_all_used(source: Source, values: Mapping[str, Constants], used: Mapping[tuple[str, str], str]) -> None:
    for mark, constants in values.items():
        spots = [spot for (name, _), spot in used.items() if name == mark]
        for name in constants:
            if (mark, name) not in used:
                where = spots[0] if spots else f"{source.name}:1"
                raise InjectionError(f"{where}: '{mark}::{name}' is missing: a value is given, and no field takes it.")


def _literal(value: int | float, kind: str, what: str) -> str:
    """The Slang literal of a value for a field of type ``kind``. Raises InjectionError where they do not fit."""
    if kind in _RANGES:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InjectionError(f"{what} is of type {kind}, and its value is {value!r}.")
        low, high = _RANGES[kind]
        if not low <= value <= high:
            raise InjectionError(f"{what} is of type {kind}, and {value} does not fit.")
        return f"{value}u" if kind == "uint" else str(value)
    if kind != "float":
        raise InjectionError(f"{what} is of type {kind}: only int, uint and float can be injected.")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InjectionError(f"{what} is of type float, and its value is {value!r}.")
    if not math.isfinite(value) or abs(value) > _FLOAT_MAX:
        raise InjectionError(f"{what} is of type float, and {value!r} does not fit.")
    return repr(float(value))


def _find(name: str, folders: Sequence[Path]) -> Path | None:
    for folder in folders:
        path = (folder / name).resolve()
        if path.is_file():
            return path
    return None


def _display(path: Path, roots: Sequence[Path]) -> str:
    """The path below its root: the same text, hence the same cache key, wherever the project lies."""
    for root in roots:
        if path.is_relative_to(root.resolve()):
            return path.relative_to(root.resolve()).as_posix()
    return path.name
