"""Recording: begin and end, barriers, and the dispatches of a chunk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from convtrain.gpu.live import vk
from convtrain.gpu.live.device import Device
from convtrain.gpu.live.pipelines import BoundPass
from convtrain.gpu.live.timing import Timestamps
from convtrain.gpu.submits import DispatchSequence, Step


class Barriers:
    """The memory barriers in use, as C structs made once."""

    def __init__(self) -> None:
        self._structs = vk.Structs()
        shader = vk.VK_ACCESS_SHADER_READ_BIT | vk.VK_ACCESS_SHADER_WRITE_BIT
        copies = vk.VK_ACCESS_TRANSFER_READ_BIT | vk.VK_ACCESS_TRANSFER_WRITE_BIT
        compute, transfer = vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, vk.VK_PIPELINE_STAGE_TRANSFER_BIT
        host = vk.VK_PIPELINE_STAGE_HOST_BIT
        written = vk.VK_ACCESS_SHADER_WRITE_BIT | vk.VK_ACCESS_TRANSFER_WRITE_BIT
        self._between = (compute, compute, self._memory(vk.VK_ACCESS_SHADER_WRITE_BIT, shader))
        self._entry = (compute | transfer, compute, self._memory(written, shader | vk.VK_ACCESS_UNIFORM_READ_BIT))
        self._copy = (compute | transfer, transfer, self._memory(written, copies))
        self._leave = (compute | transfer, host, self._memory(written, vk.VK_ACCESS_HOST_READ_BIT))

    def _memory(self, source: int, destination: int) -> Any:
        return self._structs.new("VkMemoryBarrier", srcAccessMask=source, dstAccessMask=destination)

    @staticmethod
    def _put(commands: Any, barrier: tuple[int, int, Any]) -> None:
        before, after, memory = barrier
        vk.lib.vkCmdPipelineBarrier(commands, before, after, 0, 1, memory, 0, vk.ffi.NULL, 0, vk.ffi.NULL)

    def between(self, commands: Any) -> None:
        """Between two dispatches."""
        self._put(commands, self._between)

    def entry(self, commands: Any) -> None:
        """Before a sequence: everything earlier on the queue is done and visible."""
        self._put(commands, self._entry)

    def copy(self, commands: Any) -> None:
        """Before a copy."""
        self._put(commands, self._copy)

    def leave(self, commands: Any) -> None:
        """At the end of work whose results the host reads."""
        self._put(commands, self._leave)


@contextmanager
def recording(commands: Any, flags: int) -> Iterator[Any]:
    """Begin and end a command buffer. Raises RunError."""
    info = vk.Structs().new("VkCommandBufferBeginInfo", flags=flags)
    vk.check(vk.lib.vkBeginCommandBuffer(commands, info), "recording commands")
    yield commands
    vk.check(vk.lib.vkEndCommandBuffer(commands), "recording commands")


def _dispatch(commands: Any, bound: BoundPass, step: Step) -> None:
    point = vk.VK_PIPELINE_BIND_POINT_COMPUTE
    vk.lib.vkCmdBindPipeline(commands, point, bound.pipeline)
    vk.lib.vkCmdBindDescriptorSets(commands, point, bound.layout, 0, bound.set_count, bound.sets, 0, vk.ffi.NULL)
    if bound.dispatch_base:
        vk.lib.vkCmdDispatchBase(commands, *step.base, *step.groups)
    else:
        vk.lib.vkCmdDispatch(commands, *step.groups)


def record(
    device: Device,
    sequence: DispatchSequence,
    passes: tuple[BoundPass, ...],
    barriers: Barriers,
    timestamps: Timestamps | None = None,
) -> tuple[Any, ...]:
    """One command buffer per chunk, each resubmittable while it is still pending.

    With ``timestamps`` a time is taken at the start and after every step. Raises RunError.
    """
    recorded = []
    for number, chunk in enumerate(sequence.chunks):
        buffer = device.command_buffer()
        with recording(buffer, vk.VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT) as commands:
            if number == 0:
                barriers.entry(commands)
            if timestamps is not None:
                timestamps.open_chunk(commands, first=number == 0)
            for position, step in enumerate(chunk.steps):
                if step.hazards and (number or position):
                    barriers.between(commands)
                _dispatch(commands, passes[step.index], step)
                if timestamps is not None:
                    timestamps.mark(commands, step.index)
            if number + 1 == len(sequence.chunks):
                barriers.leave(commands)
        recorded.append(buffer)
    return tuple(recorded)
