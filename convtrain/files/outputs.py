"""Refuse outputs that cannot be written, or that would replace what must stay, before any long work begins."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from convtrain.errors import InputError
from convtrain.files.atomic import write_error
from convtrain.files.container import HEADER_BYTES, kind_of


def check_outputs(outputs: Sequence[Path], inputs: Sequence[Path] = (), *, kind: str | None = None) -> None:
    """Refuse a command's output files while nothing is written yet.

    Each must be new or a regular file, in a folder that can be written or made there, and no resource file but one of
    this ``kind``; and :func:`check_distinct` must hold. Raises InputError, or RunError for a disk that is full or
    failing.
    """
    check_distinct(outputs, inputs)
    for path in outputs:
        _check_writable(path, kind)


def check_distinct(outputs: Sequence[Path], inputs: Sequence[Path] = ()) -> None:
    """Raise InputError when an output is the same file, links followed, as an input or another output."""
    pairs = [(output, other) for output in outputs for other in inputs]
    for output, other in (*pairs, *combinations(outputs, 2)):
        if _same(output, other):
            raise InputError(
                f"Cannot write {output}: the same command needs {other}, the same file. Give another name."
            )


def _same(one: Path, other: Path) -> bool:
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them is not there yet
        return False


def _check_writable(path: Path, kind: str | None) -> None:
    try:
        _check_kind_and_place(path, kind)
    except OSError as error:
        raise write_error(path, error) from error


def _check_kind_and_place(path: Path, kind: str | None) -> None:
    target = Path(os.path.realpath(path))  # as atomic_write does: what a link points at is replaced
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        pass
    else:
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise InputError(f"Cannot write {path}: it is {what}. Give the name of a file.")
        found = _resource_kind(target)
        if found not in (None, kind):
            raise InputError(f"Cannot write {path}: it is a resource file of convtrain ({found}). Give another name.")
    if path.is_symlink() and not target.parent.is_dir():
        raise InputError(f"Cannot write {path}: it is a link into {target.parent}, a folder that does not exist.")
    folder = next(parent for parent in target.parents if os.path.lexists(parent))
    longest = os.pathconf(folder, "PC_NAME_MAX")
    if any(len(os.fsencode(part)) > longest for part in target.relative_to(folder).parts):
        raise InputError(f"Cannot write {path}: its name is too long. Give a shorter one.")
    with tempfile.TemporaryFile(dir=folder):
        pass  # permissions, read-only and special file systems: trying is the only sure test


def _resource_kind(target: Path) -> str | None:
    """What its header says it is; None for what is no resource file."""
    try:
        with open(target, "rb") as file:
            return kind_of(file.read(HEADER_BYTES))
    except PermissionError:  # what cannot be read can still be replaced
        return None
