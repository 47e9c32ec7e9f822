"""Executes an execution plan on its device: what the layers above see of the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from convtrain.errors import InputError
from convtrain.gpu.live import vk
from convtrain.gpu.live.cache import PipelineCache
from convtrain.gpu.live.commands import Barriers, record
from convtrain.gpu.live.device import Device
from convtrain.gpu.live.instance import shared_instance
from convtrain.gpu.live.memory import HostBlock, device_block, host_arena
from convtrain.gpu.live.pipelines import Pipelines
from convtrain.gpu.live.submission import Queue, Ticket, submit_info
from convtrain.gpu.live.timing import Timestamps
from convtrain.gpu.live.transfers import Transfers
from convtrain.gpu.placement import Slot
from convtrain.gpu.plan import ExecutionPlan, sequence, uniform_key
from convtrain.gpu.submits import DispatchSequence, batches, proven_speed
from convtrain.gpu.timings import PassTiming
from convtrain.graph.types import STORE, Buffer, Uniform

Active = tuple[int, ...]
_DTYPES = {"f32": "<f4", "u32": "<u4", "i32": "<i4", "f16": "<f2"}
_RUNS_BEFORE_RECUT = 2
"""The first run of a sequence includes what drivers put off until then."""
_SUBMITS_AHEAD_ON_CPU = 2
"""A CPU device's queue cannot be interrupted: keep little in it, so that a person's Ctrl-C is heard soon."""


@dataclass
class _Recorded:
    """A sequence with its command buffers, and the submits for each number of repeats."""

    sequence: DispatchSequence
    buffers: tuple[Any, ...]
    timestamps: Timestamps | None
    submits: dict[int, list[Any]] = field(default_factory=dict)
    runs: int = 0  # those that were waited for


def uniform_dtype(uniform: Uniform) -> np.dtype[Any]:
    """The structured NumPy type of a uniform block, with the field names and offsets of the compiler's reflection."""
    return np.dtype(
        {
            "names": [item.name for item in uniform.fields],
            "formats": [_DTYPES[item.dtype] for item in uniform.fields],
            "offsets": [item.offset for item in uniform.fields],
            "itemsize": uniform.size,
        }
    )


class Engine:
    """An execution plan, live: memory allocated, seeded and cleared, pipelines built, nothing run yet.

    ``read_blob`` gives a blob of the archive by SHA-256; ``cache_dir`` is where the pipeline cache lies (None: no
    cache). ``compiled`` tells whether the driver had to compile kernels, which the cache did not hold. Not for use by
    several threads. Close it, or use it as a context manager.

    Raises RunError when the device fails or its memory is exhausted, InputError for shaders that do not fit.
    """

    def __init__(
        self, execution: ExecutionPlan, read_blob: Callable[[str], bytes | memoryview], *, cache_dir: Path | None = None
    ) -> None:
        self.execution = execution
        self._structs = vk.Structs()
        self._recorded: dict[tuple[Active, bool], _Recorded] = {}  # by passes, and whether they are timed
        self._instance = shared_instance(execution.switches.validate)
        self._device = Device(self._instance, execution.snapshot, execution.features)
        try:
            self._build(read_blob, None if execution.switches.no_pipeline_cache else cache_dir)
        except BaseException:
            self.close()
            raise

    def _build(self, read_blob: Callable[[str], bytes | memoryview], cache_dir: Path | None) -> None:
        execution, device = self.execution, self._device
        self._barriers = Barriers()
        depth = _SUBMITS_AHEAD_ON_CPU if execution.snapshot.kind == "cpu" else 0
        self._queue = Queue(device, depth)
        self._transfers = Transfers(device, self._queue, self._barriers)
        self._blocks = [device_block(device, size) for size in execution.device_memory.blocks]
        self._arenas: list[HostBlock] = [host_arena(device, size) for size in execution.host_memory.blocks]
        self._device_slots = {slot.key: slot for slot in execution.device_memory.slots}
        self._host_slots = {slot.key: slot for slot in execution.host_memory.slots}
        self._fill(read_blob)
        cache = PipelineCache(device, cache_dir)
        self._passes = Pipelines(device, execution, read_blob, cache.handle).bind(self._locate)
        self.compiled = cache.save()

    def _fill(self, read_blob: Callable[[str], bytes | memoryview]) -> None:
        """First contents: zero, then seeds and the first values of uniforms."""
        for block in self._blocks:
            self._transfers.clear(block)
        for buffer in self.execution.plan.buffers:
            if buffer.seed is not None:
                self.write(buffer.id, read_blob(buffer.seed))
        for item in self.execution.plan.passes:
            if item.uniform is not None:
                view = self.uniform(item.index)
                for name, value in item.uniform.initial.items():
                    view[name] = value

    def _locate(self, key: str) -> tuple[Any, Slot]:
        if key in self._device_slots:
            slot = self._device_slots[key]
            return self._blocks[slot.block], slot
        slot = self._host_slots[key]
        return self._arenas[slot.block].buffer, slot

    # Contents

    def _find(self, key: str) -> str:
        """The slot behind a buffer's id, label or port, or a uniform block's label. Raises KeyError."""
        for item in self.execution.plan.passes:
            if item.uniform is not None and item.uniform.label == key != "":
                return uniform_key(item.index)
        return self.execution.plan.buffer(key).id

    def _host_bytes(self, slot: Slot) -> npt.NDArray[np.uint8]:
        return self._arenas[slot.block].view[slot.offset : slot.offset + slot.size]

    def write(self, key: str, content: bytes | bytearray | memoryview) -> None:
        """Replace a buffer's (or labelled uniform block's) whole contents.

        Raises KeyError for an unknown key and InputError when the number of bytes differs.
        """
        name = self._find(key)
        buffer, slot = self._locate(name)
        view = memoryview(content).cast("B")
        if len(view) != slot.size:
            raise InputError(f"Buffer {key} holds {slot.size:,} bytes, and {len(view):,} were given.")
        if name in self._host_slots:
            self._host_bytes(slot)[:] = np.frombuffer(view, np.uint8)
        else:
            self._transfers.upload(buffer, slot.offset, view)

    def read(self, key: str) -> bytes:
        """A buffer's (or labelled uniform block's) whole contents. Raises KeyError for an unknown key."""
        name = self._find(key)
        buffer, slot = self._locate(name)
        if name in self._host_slots:
            return self._host_bytes(slot).tobytes()
        return self._transfers.download(buffer, slot.offset, slot.size)

    def host(self, key: str) -> npt.NDArray[Any]:
        """A host buffer as a flat array of its element type, shared with the device.

        Valid until ``close``. Raises KeyError for an unknown key or a buffer that is not the host's.
        """
        buffer: Buffer = self.execution.plan.buffer(key)
        dtype = self.execution.storage if buffer.dtype == STORE else buffer.dtype
        return self._host_bytes(self._host_slots[buffer.id]).view(_DTYPES[dtype])

    def uniform(self, index: int) -> npt.NDArray[Any]:
        """The uniform block of pass ``index`` as a 0-d structured array, shared with the device.

        Valid until ``close``; change it only while nothing that reads it is under way. Raises KeyError where the
        pass has none.
        """
        uniform = self.execution.plan.passes[index].uniform
        if uniform is None:
            raise KeyError(f"pass {index} has no uniform block")
        return self._host_bytes(self._host_slots[uniform_key(index)]).view(uniform_dtype(uniform)).reshape(())

    # Execution

    def prepare(self, active: Active) -> None:
        """Record the passes ``active`` (ascending), if that has not been done yet. Raises RunError."""
        self._get(active, timed=False)

    def submit(self, active: Active, repeat: int = 1) -> Ticket:
        """Start the passes ``active``, ``repeat`` times in a row, and return at once. Raises RunError."""
        return self._start(self._get(active, timed=False), repeat)

    def wait(self, ticket: Ticket) -> None:
        """Block until what ``submit`` started is done. Raises RunError when the device was lost."""
        self._queue.wait(ticket)

    def run(self, active: Active, repeat: int = 1) -> None:
        """``submit`` and ``wait``. Raises RunError."""
        started = time.perf_counter()
        recorded = self._get(active, timed=False)
        self._queue.wait(self._start(recorded, repeat))
        recorded.runs += 1
        if recorded.runs == _RUNS_BEFORE_RECUT:
            self._recut(recorded, (time.perf_counter() - started) / repeat)

    def measure(self, active: Active) -> list[PassTiming]:
        """Run the passes ``active`` once, as ``run`` does, and return the GPU time of each. Raises RunError.

        On a device without timestamps (``DeviceSnapshot.timestamp_bits`` is 0) the list is empty.
        """
        if not self.execution.snapshot.timestamp_bits:
            self.run(active)
            return []
        recorded = self._get(active, timed=True)
        self._queue.wait(self._start(recorded, 1))
        assert recorded.timestamps is not None
        timings = recorded.timestamps.read()
        recorded.runs += 1
        if recorded.runs == _RUNS_BEFORE_RECUT:
            self._recut(recorded, sum(item.nanoseconds for item in timings) / 1e9)
        return timings

    def _get(self, active: Active, *, timed: bool) -> _Recorded:
        recorded = self._recorded.get((active, timed))
        if recorded is None:
            recorded = self._recorded[active, timed] = self._record(sequence(self.execution, active), timed)
        return recorded

    def _record(self, made: DispatchSequence, timed: bool) -> _Recorded:
        timestamps = Timestamps(self._device, made) if timed else None
        buffers = record(self._device, made, self._passes, self._barriers, timestamps)
        return _Recorded(made, buffers, timestamps)

    def _start(self, recorded: _Recorded, repeat: int) -> Ticket:
        submits = recorded.submits.get(repeat)
        if submits is None:
            packed = batches(recorded.sequence, repeat, self.execution.pace.budget)
            submits = [submit_info(self._structs, [recorded.buffers[n] for n in batch]) for batch in packed]
            recorded.submits[repeat] = submits
        return self._queue.submit(submits)

    def _recut(self, old: _Recorded, seconds: float) -> None:
        """Put the passes into fewer command buffers where the device has proved faster than estimated.

        Not on a CPU, whose short submits are for the sake of whoever presses Ctrl-C.
        """
        if len(old.sequence.chunks) < 2 or self.execution.snapshot.kind == "cpu":
            return
        active, timed = old.sequence.active, old.timestamps is not None
        made = sequence(self.execution, active, speed=proven_speed(old.sequence, seconds))
        if len(made.chunks) < len(old.sequence.chunks):
            self._recorded[active, timed] = replace(self._record(made, timed), runs=old.runs)

    @property
    def validation_messages(self) -> list[str]:
        """What the validation layer has reported so far in this process; empty without ``CONV_VALIDATE``."""
        return [] if self._instance.messages is None else self._instance.messages.collected

    def close(self) -> None:
        """Destroy everything. Views of host memory must not be used any more. Safe to call twice."""
        self._device.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
