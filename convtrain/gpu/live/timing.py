"""GPU timestamps around the steps of a sequence."""

from __future__ import annotations

from typing import Any

from convtrain.gpu.live import vk
from convtrain.gpu.live.device import Device
from convtrain.gpu.submits import DispatchSequence
from convtrain.gpu.timings import PassTiming, interval


class Timestamps:
    """Times taken on the device while a sequence runs: one at the start of each chunk, one after each step.

    A chunk's first time keeps the host's pause between two submits out of the pass that follows it.
    """

    def __init__(self, device: Device, sequence: DispatchSequence) -> None:
        self._device = device
        self._count = sum(len(chunk.steps) + 1 for chunk in sequence.chunks)
        self._marks: list[int | None] = []  # the pass that ended, None at a chunk's start
        info = vk.Structs().new("VkQueryPoolCreateInfo", queryType=vk.VK_QUERY_TYPE_TIMESTAMP, queryCount=self._count)
        self._pool = device.own("VkQueryPool", info, doing="creating timestamp queries")

    def open_chunk(self, commands: Any, *, first: bool) -> None:
        """Record the time at which a chunk starts; the first one also clears all queries."""
        if first:
            vk.lib.vkCmdResetQueryPool(commands, self._pool, 0, self._count)
        self._take(commands, None)

    def mark(self, commands: Any, index: int) -> None:
        """Record the time at which the step of pass ``index`` is done."""
        self._take(commands, index)

    def _take(self, commands: Any, index: int | None) -> None:
        stage = vk.VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT
        vk.lib.vkCmdWriteTimestamp(commands, stage, self._pool, len(self._marks))
        self._marks.append(index)

    def read(self) -> list[PassTiming]:
        """The times of the last run, pass by pass in order. Raises RunError."""
        ticks = vk.ffi.new("uint64_t[]", self._count)
        flags = vk.VK_QUERY_RESULT_64_BIT | vk.VK_QUERY_RESULT_WAIT_BIT
        size = self._count * 8
        result = vk.lib.vkGetQueryPoolResults(self._device.handle, self._pool, 0, self._count, size, ticks, 8, flags)
        vk.check(result, "reading timestamps")
        snapshot, spent = self._device.snapshot, dict[int, float]()
        for number, index in enumerate(self._marks):
            if index is not None:
                elapsed = interval(ticks[number - 1], ticks[number], snapshot.timestamp_bits)
                spent[index] = spent.get(index, 0.0) + elapsed * snapshot.timestamp_period
        return [PassTiming(index, nanoseconds) for index, nanoseconds in spent.items()]
