"""The checkpoint: a run's complete state, restored into the same plan bit for bit or into another by label.

Entries are named by one rule, :func:`state_entries`, for writing and for reading: a buffer with the ``dump`` flag is
``<pass>-<port>.bin`` after the port that owns it, a uniform block with the flag is ``<pass>-u.bin``. The contents are
raw device bytes, little-endian. The file also carries the plan, the configuration and the metrics, so that it can be
read without its archive, and the archive's identity, so that it is never continued with another.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convtrain import __version__
from convtrain.errors import InputError
from convtrain.files.archive import TrainingArchive
from convtrain.files.container import Container, Data, sha256, write_container
from convtrain.files.manifest import entry, unusable
from convtrain.files.plans import UNIFORM_TYPES, read_plans
from convtrain.files.resource import Resource, open_resource
from convtrain.graph.types import STORE, Plan, Uniform, to_json

CHECKPOINT_NAME = "checkpoint.res"
"""The checkpoint's name inside the training folder."""


@dataclass(frozen=True)
class StateEntry:
    """One piece of training state: its entry name, its label, its length in bytes, its layout if it is a uniform."""

    name: str
    label: str
    nbytes: int
    uniform: Uniform | None = None


def state_entries(plan: Plan) -> tuple[StateEntry, ...]:
    """The plan's dump set, in pass order: exactly what is checkpointed and restored.

    Raises ValueError for a state buffer whose element type follows the device (state must mean the same anywhere).
    """
    found = []
    for buffer in plan.buffers:
        if buffer.dump:
            if buffer.dtype == STORE:
                raise ValueError(f"state buffer {buffer.label} needs an element type of its own")
            found.append(StateEntry(f"{buffer.id}.bin", buffer.label, buffer.nbytes("f32")))
    found += (
        StateEntry(f"{item.index}-u.bin", item.state_label, item.uniform.size, item.uniform)
        for item in plan.passes
        if item.uniform and item.state_label is not None
    )
    return tuple(found)


def write_checkpoint(
    path: Path, archive: TrainingArchive, plan: Plan, state: Mapping[str, Data], metrics: Mapping[str, Any]
) -> str:
    """Write the state of a run on ``plan`` atomically and return the checkpoint's identity.

    ``state`` maps the label of every entry of :func:`state_entries` to its bytes. Metrics that are not finite are
    stored as null. Raises ValueError when ``state`` is not exactly the dump set, InputError or RunError when the file
    cannot be written (an older checkpoint is then kept).
    """
    entries = state_entries(plan)
    if {item.label for item in entries} != set(state):
        raise ValueError(f"state {sorted(state)} is not the dump set {sorted(item.label for item in entries)}")
    names, blobs = {}, {}
    for item in entries:
        content = state[item.label]
        if memoryview(content).nbytes != item.nbytes:
            raise ValueError(f"state {item.label} has {memoryview(content).nbytes} bytes instead of {item.nbytes}")
        names[item.name] = sha256(content)
        blobs[names[item.name]] = content
    manifest = {
        "archive": archive.identity,
        "convtrain": __version__,
        "config": archive.config,
        "weights": archive.weights.to_json(),
        "metrics": finite(metrics),
        "plans": {plan.name: to_json(plan)},
        "entries": names,
    }
    return write_container(path, "checkpoint", manifest, blobs, raw=blobs)


class Checkpoint(Resource):
    """An open checkpoint.

    ``archive`` is the identity of the training archive that it belongs to, ``plan`` the plan that wrote it, ``metrics``
    what was measured then (``epoch`` and more).
    """

    def __init__(self, container: Container) -> None:
        """Raises InputError for a manifest that does not describe a checkpoint."""
        super().__init__(container)
        self.archive: str = entry(container, "archive", str)
        self.metrics: dict[str, Any] = entry(container, "metrics", dict[str, Any])
        self.names: dict[str, str] = entry(container, "entries", dict[str, str])
        (self.plan, *others) = read_plans(container).values()
        try:
            self.entries = state_entries(self.plan)
        except ValueError as error:
            raise unusable(container, f"is wrong: {error}") from None
        found = {name: container.blobs[blob].size for name, blob in self.names.items() if blob in container.blobs}
        if others or found != {item.name: item.nbytes for item in self.entries} or len(found) != len(self.names):
            raise unusable(container, "does not list the state of its one plan")

    def read(self, item: StateEntry) -> memoryview:
        """The bytes of one of ``entries``, hash checked. Raises InputError."""
        return self._container.blob(self.names[item.name])

    def raw_weights(self) -> memoryview:
        """The weights as training left them (never averaged), float32. Raises InputError."""
        for item in self.entries:
            if item.name == f"{self.plan.roles.weights}.bin" and item.nbytes == self.weights.nbytes:
                return self.read(item)
        raise unusable(self._container, "does not say where the weights are")

    def restore(self, plan: Plan) -> dict[str, Data]:
        """The bytes of ``plan``'s dump set, by label.

        Buffers are matched by label and must have the same length, also where one plan keeps in a buffer (the device
        advances it) what the other keeps in a uniform block (the host does). Two uniform blocks are copied whole where
        the layout is the same, else field by field (name and type); fields that the checkpoint does not have start at
        their initial value. Raises InputError for state that the checkpoint does not have.
        """
        mine = {item.label: item for item in self.entries}
        state: dict[str, Data] = {}
        for item in state_entries(plan):
            source = mine.get(item.label)
            if source is None:
                raise self._misfit(plan, f"has no {item.label}")
            if source.uniform and item.uniform:
                state[item.label] = _convert(self.read(source), source.uniform, item.uniform)
            elif source.nbytes == item.nbytes:
                state[item.label] = self.read(source)
            else:
                raise self._misfit(plan, f"has {source.nbytes} bytes of {item.label} instead of {item.nbytes}")
        return state

    def _misfit(self, plan: Plan, why: str) -> InputError:
        return InputError(
            f"{self.path} was written by plan {self.plan.name} and {why}: plan {plan.name} cannot continue from it. "
            f"Use `--plan {self.plan.name}`, or start again with `convtrain run --fresh`."
        )


def open_checkpoint(path: Path, archive: TrainingArchive | None = None) -> Checkpoint:
    """Open a checkpoint, and with ``archive`` given, only one that belongs to it.

    Raises InputError, with how to start fresh, for a file that is damaged, of another kind, or of another archive.
    """
    checkpoint = open_resource(path, "checkpoint", Checkpoint)
    if archive is not None and checkpoint.archive != archive.identity:
        checkpoint.close()
        raise InputError(
            f"{path} belongs to another training archive than {archive.path} (other settings or another image). "
            "Start again with `convtrain run --fresh`, or cook the former archive again to continue."
        )
    return checkpoint


def finite(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics with null for numbers that JSON cannot carry (the PSNR of a perfect picture is infinite)."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in metrics.items()
    }


def _convert(content: memoryview, source: Uniform, target: Uniform) -> Data:
    if (source.size, source.fields) == (target.size, target.fields):
        return content
    found = {
        (item.name, item.dtype): struct.unpack_from(UNIFORM_TYPES[item.dtype], content, item.offset)[0]
        for item in source.fields
    }
    block = bytearray(target.size)
    for item in target.fields:
        first = target.initial.get(item.name, 0)
        value = found.get((item.name, item.dtype), first if item.dtype == "f32" else int(first))
        struct.pack_into(UNIFORM_TYPES[item.dtype], block, item.offset, value)
    return block
