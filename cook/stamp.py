"""The ``.cook`` stamp: which inputs the archive was made of. Written last, so it never vouches for a half-made one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from convtrain.files.atomic import write_bytes
from convtrain.files.regular import open_regular, read_regular

_PACKAGES = ("slangpy", "numpy", "pillow", "zstandard")
_ROOT = Path(__file__).resolve().parent.parent
_CODE = ("cook", "convtrain/graph", "convtrain/files")


def inputs_digest(facts: Mapping[str, Any], image: bytes, slang_root: Path) -> str:
    """One digest of everything that decides the archive's bytes, paths excepted.

    ``facts`` are the resolved options (JSON-able); added to them are the image file, every Slang source, the code of
    the cook phase, and the versions of the packages that it uses. Takes milliseconds and does not load the compiler.
    """
    digest = hashlib.sha256()

    def add(name: str, data: bytes) -> None:
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)

    add("facts", json.dumps(facts, sort_keys=True).encode())
    add("packages", json.dumps({name: _version(name) for name in _PACKAGES}).encode())
    add("image", image)
    for name, path in _files([slang_root], "*.slang"):
        add(name, path.read_bytes())
    for name, path in _files([_ROOT / folder for folder in _CODE], "*.py"):
        add(name, path.read_bytes())
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _files(folders: Iterable[Path], pattern: str) -> list[tuple[str, Path]]:
    return [
        (f"{folder.name}/{path.relative_to(folder).as_posix()}", path)
        for folder in folders
        for path in sorted(folder.rglob(pattern))
    ]


def identity_of(archive: Path) -> str | None:
    """The SHA-256 of the whole file, which is a container's identity; None where it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open_regular(archive) as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError:
        return None
    return digest.hexdigest()


def is_current(stamp: Path, archive: Path, inputs: str) -> bool:
    """Whether the stamp says that ``archive``, as it is on disk now, was made of ``inputs``."""
    try:
        data = json.loads(read_regular(stamp))
        return bool(data["inputs"] == inputs and data["archive"] == identity_of(archive))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def write_stamp(stamp: Path, inputs: str, identity: str) -> None:
    """Vouch for the archive with this identity (SHA-256 of the whole file). Raises as ``atomic_write`` does."""
    write_bytes(stamp, json.dumps({"inputs": inputs, "archive": identity}).encode())
