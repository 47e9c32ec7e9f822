"""Replace a file as a whole: a reader, or a crash at any moment, sees the old file or the new one, never a half.

The new content goes to a temporary in the same folder, is flushed to the disk, and is renamed over the old file.
A writer that fails removes its temporary. One that is killed cannot: its temporary stays behind, and the next
writer of the same file removes it. The two are told apart by an flock that a living writer holds on its temporary
and that the kernel drops with the process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import BinaryIO

from convtrain.errors import ConvtrainError, InputError, RunError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_USER_MISTAKES = {
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ENOENT: "its folder does not exist",
    errno.ENOTDIR: "a part of its path is a file, not a folder",
    errno.EISDIR: "it is a folder",
    errno.ENAMETOOLONG: "its name is too long",
    errno.ELOOP: "its path runs through too many symbolic links",
}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}


def write_error(path: Path, error: OSError) -> ConvtrainError:
    """The sentence for a failed write to ``path``: InputError for a user's mistake, RunError for the rest."""
    if error.errno in _FULL:
        return RunError(
            f"Cannot write {path}: no space is left for it (what was there before is kept). Free some space."
        )
    if error.errno in _USER_MISTAKES:
        reason = _USER_MISTAKES[error.errno]
        return InputError(f"Cannot write {path}: {reason}. Choose another place or make this one writable.")
    return RunError(f"Cannot write {path}: {error.strerror or error}.")


def ensure_folder(folder: Path) -> None:
    """Create ``folder`` and its parents where missing. Raises InputError when it is no folder or cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InputError(f"{folder} is a file, and a folder is needed there.") from None
    except OSError as error:
        raise write_error(folder, error) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"Cannot write to the folder {folder}: choose another one or make it writable.")


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a binary file (seekable) that replaces ``path`` when the block ends, and vanishes when it raises.

    The folder must exist. A symbolic link is followed, so the file it points at is replaced. Raises InputError where
    ``path`` cannot be written and RunError for a full or failing disk; the old file is then still there.
    """
    try:
        target = _replaceable(path)
        _remove_stale(target)
        temporary, handle = _create_temporary(target)
    except OSError as error:
        raise write_error(path, error) from error
    try:
        with handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
            os.replace(temporary, target)
        _sync_folder(target.parent)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        with suppress(OSError):  # already renamed, if all went well
            os.unlink(temporary)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``, as :func:`atomic_write` does."""
    with atomic_write(path) as file:
        file.write(data)


def _replaceable(path: Path) -> Path:
    """The real file behind ``path``. Raises InputError for a folder or a device, which a rename would replace."""
    target = Path(os.path.realpath(path))
    with suppress(FileNotFoundError):
        mode = target.stat().st_mode
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise InputError(f"Cannot write {path}: it is {what}. Give the name of a file.")
    return target


def _create_temporary(target: Path) -> tuple[Path, BinaryIO]:
    """A new file beside ``target``, locked so that other writers know its writer lives."""
    while True:
        temporary = target.with_name(f"{_prefix(target)}{secrets.token_hex(4)}.tmp")
        handle = open(temporary, "x+b")  # noqa: SIM115 (the caller closes it)
        _lock(handle)
        if os.fstat(handle.fileno()).st_nlink:
            return temporary, handle
        handle.close()  # another writer took it for a stale one before the lock was on: try again


def _prefix(target: Path) -> str:
    # Cut, so that a name of the longest length still leaves room for the rest.
    return f".{target.name[:48]}."


def _remove_stale(target: Path) -> None:
    """Delete temporaries of ``target`` whose writers were killed."""
    for leftover in target.parent.glob(f"{escape(_prefix(target))}{'[0-9a-f]' * 8}.tmp"):
        with suppress(OSError), open(leftover, "r+b") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(leftover)


def _lock(handle: BinaryIO) -> None:
    # A file system without flock only loses the tidying of stale temporaries: nobody can lock, so nobody deletes.
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the file system and the folder's permissions allow it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)
