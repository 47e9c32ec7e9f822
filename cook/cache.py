"""Compiled kernels on disk, named by everything that decides their content."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from convtrain.files.atomic import ensure_folder, write_error
from convtrain.files.container import sha256
from cook.compiler import Compiled, options_key
from cook.jobs import Job, compile_all
from cook.reflect import Reflection


class SpirvCache:
    """A folder of ``<key>.spv`` and ``<key>.json`` (interface, warnings, hash of the SPIR-V), safe to delete.

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
            code = (self.folder / f"{key}.spv").read_bytes()
            data = json.loads((self.folder / f"{key}.json").read_text(encoding="utf-8"))
            if data["sha256"] != sha256(code):
                return None
            return Compiled(code, Reflection.from_json(data["reflection"]), data["warnings"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, key: str, compiled: Compiled) -> None:
        data = {
            "sha256": sha256(compiled.spirv),
            "reflection": compiled.reflection.to_json(),
            "warnings": compiled.warnings,
        }
        path = self.folder / f"{key}.spv"
        try:  # no need for an atomic write: the hash tells a half-written entry
            path.write_bytes(compiled.spirv)
            path.with_suffix(".json").write_text(json.dumps(data, indent=1), encoding="utf-8")
        except OSError as error:
            raise write_error(path, error) from error
