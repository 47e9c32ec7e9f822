"""Compiled kernels on disk, named by everything that decides their content."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from convtrain.files.atomic import ensure_folder, write_error
from convtrain.files.container import sha256
from convtrain.files.regular import read_regular
from cook.compiler import Compiled, options_key
from cook.jobs import Job, compile_all
from cook.reflect import Reflection


class SpirvCache:
    """A folder of ``<key>.spv`` and ``<key>.json`` (interface, warnings, digest of it all), safe to delete.

    The key is the SHA-256 of the final text, the entry point and the compiler's version and options: a changed
    constant gives new keys to the kernels that use it, and to no others.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def compile(self, jobs: Sequence[Job], workers: int | None = None) -> tuple[list[Compiled], int]:
        """Every job's result, in order, and how many were compiled just now; equal jobs are compiled once.

        Raises ShaderError for a kernel that does not compile, InputError or RunError where the folder cannot be
        written.
        """
        keys = [sha256(f"{options_key(job.entry, job.profile)}\n{job.name}\n{job.text}".encode()) for job in jobs]
        found = {key: kept for key in dict.fromkeys(keys) if (kept := self._read(key)) is not None}
        missing = {key: job for key, job in zip(keys, jobs, strict=True) if key not in found}
        if missing:
            ensure_folder(self.folder)
        for key, compiled in zip(missing, compile_all([*missing.values()], workers), strict=True):
            self._write(key, compiled)
            found[key] = compiled
        return [found[key] for key in keys], len(missing)

    def _read(self, key: str) -> Compiled | None:
        """The entry, or None where there is none or it is damaged: it is then made again."""
        try:
            code = read_regular(self.folder / f"{key}.spv")
            data = json.loads(read_regular(self.folder / f"{key}.json"))
            if data["digest"] != _digest(key, code, data["reflection"], data["warnings"]):
                return None
            return Compiled(code, Reflection.from_json(data["reflection"]), data["warnings"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _write(self, key: str, compiled: Compiled) -> None:
        reflection, warnings = compiled.reflection.to_json(), compiled.warnings
        digest = _digest(key, compiled.spirv, reflection, warnings)
        data = {"digest": digest, "reflection": reflection, "warnings": warnings}
        for suffix, content in ((".spv", compiled.spirv), (".json", json.dumps(data, indent=1).encode())):
            path = self.folder / f"{key}{suffix}"
            try:  # no need for an atomic write: the digest tells a half-written entry
                _make_way(path)
                path.write_bytes(content)
            except OSError as error:
                raise write_error(path, error) from error


def _make_way(path: Path) -> None:
    """Remove what is no file, and so no entry, but has the name of one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_symlink() or (path.exists() and not path.is_file()):
        path.unlink()


def _digest(key: str, code: bytes, reflection: object, warnings: object) -> str:
    """Binds everything in an entry to its key."""
    text = json.dumps([key, sha256(code), reflection, warnings], sort_keys=True)
    return sha256(text.encode())
