"""One writer at a time in a training folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from os import getpid
from pathlib import Path

from convtrain.errors import InputError
from convtrain.files.atomic import write_error

LOCK_NAME = ".lock"


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the training folder's exclusive lock for the block.

    The kernel drops the lock when the process ends, however it ends, so nothing is ever stale: the file ``.lock``
    stays behind, empty of meaning. Raises InputError when another process holds it or the folder cannot be written.
    """
    path = folder / LOCK_NAME
    try:
        file = open(path, "a+b", buffering=0)  # noqa: SIM115 (closed below)
    except OSError as error:
        raise write_error(path, error) from error
    with file:
        try:
            _acquire(file, folder)
        except OSError as error:
            raise write_error(path, error) from error
        try:
            yield
        finally:
            file.truncate(0)  # so that two cooks leave the same bytes in their folders


def _acquire(file: FileIO, folder: Path) -> None:
    """Lock the open file and leave this process's number in it, for others to name."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read(20).strip()
        process = f" (process {holder.decode()})" if holder.isdigit() else ""
        raise InputError(
            f"Another convtrain is working in {folder}{process}: wait until it ends, or use another folder."
        ) from None
    file.truncate(0)
    file.write(str(getpid()).encode())
