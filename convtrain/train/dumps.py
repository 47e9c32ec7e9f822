"""``--dump NAME=FILE.npy``: any named buffer of the plan, as float32."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from convtrain.errors import InputError
from convtrain.files.atomic import write_bytes
from convtrain.graph.types import Buffer, Plan
from convtrain.train.session import Session

_NUMPY = {"f32": np.float32, "f16": np.float16, "u32": np.uint32, "i32": np.int32}


@dataclass(frozen=True)
class Dump:
    buffer: Buffer
    path: Path


def parse_dumps(plan: Plan, requests: Sequence[str]) -> list[Dump]:
    """Resolve ``NAME=FILE.npy`` requests; a name is a buffer's label or ``<pass>-<port>``.

    Raises InputError for a malformed request, a name that no buffer has, a buffer that is no array, a file (links
    followed) of another kind, or a folder that is not there.
    """
    return [_parse(plan, request) for request in requests]


def _parse(plan: Plan, request: str) -> Dump:
    name, equals, file = request.partition("=")
    if not (name and equals and file):
        raise InputError(f"--dump {request}: write it as NAME=FILE.npy, for example --dump Out=out.npy.")
    try:
        buffer = plan.buffer(name)
    except KeyError:
        labels = ", ".join(sorted(buffer.label for buffer in plan.buffers if buffer.label != buffer.id))
        raise InputError(
            f"--dump {name}: plan {plan.name} has no such buffer. It has {labels}, and any PASS-PORT such as 19-2."
        ) from None
    if plan.roles.state in (buffer.id, buffer.label):
        raise InputError(f"--dump {name}: it holds numbers of several types, which an array of float32 cannot.")
    path = Path(file)
    if {path.suffix.lower(), Path(os.path.realpath(path)).suffix.lower()} != {".npy"}:
        raise InputError(f"--dump {request}: a buffer is written as NumPy's .npy, so give a name that ends in .npy.")
    if not path.parent.is_dir():
        raise InputError(f"--dump {request}: the folder {path.parent} does not exist.")
    return Dump(buffer, path)


def require_available(session: Session, dumps: Sequence[Dump]) -> None:
    """For a run of no epochs: refuse what only training computes. Raises InputError."""
    shown = {port.buffer for item in session.plan.passes if item.infer for port in item.ports}
    for dump in dumps:
        if not (dump.buffer.dump or dump.buffer.seed is not None or dump.buffer.id in shown):
            raise InputError(f"--dump {dump.buffer.label}: only training fills it; run at least one epoch.")


def write_dumps(session: Session, dumps: Sequence[Dump]) -> None:
    """Write each buffer as a float32 .npy file in its own shape (flat where it has none)."""
    for dump in dumps:
        buffer = dump.buffer
        dtype = _NUMPY[session.execution.storage if buffer.dtype == "store" else buffer.dtype]
        values = np.frombuffer(session.engine.read(buffer.id), dtype).astype(np.float32)
        memory = io.BytesIO()
        np.save(memory, values[: buffer.elements].reshape(buffer.shape or (-1,)))
        write_bytes(dump.path, memory.getvalue())
