"""Copies between the host and device buffers through a staging buffer, and clearing."""

from __future__ import annotations

from typing import Any

import numpy as np

from convtrain.gpu.live import vk
from convtrain.gpu.live.commands import Barriers, recording
from convtrain.gpu.live.device import Device
from convtrain.gpu.live.memory import HostBlock, staging_block
from convtrain.gpu.live.submission import Queue, submit_info

CHUNK_BYTES = 8 << 20


class Transfers:
    """Blocking copies, in chunks of at most ``CHUNK_BYTES``."""

    def __init__(self, device: Device, queue: Queue, barriers: Barriers) -> None:
        self._device, self._queue, self._barriers = device, queue, barriers
        self._commands = device.command_buffer()
        self._structs = vk.Structs()
        self._info = submit_info(self._structs, [self._commands])
        self._staging_block: HostBlock | None = None

    @property
    def _staging(self) -> HostBlock:
        if self._staging_block is None:
            self._staging_block = staging_block(self._device, CHUNK_BYTES)
        return self._staging_block

    def _run(self, call: Any, *arguments: Any) -> None:
        once = vk.VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT
        with recording(self._commands, once) as commands:
            self._barriers.copy(commands)
            call(commands, *arguments)
            self._barriers.leave(commands)
        self._queue.wait(self._queue.submit([self._info]))

    def clear(self, buffer: Any) -> None:
        """Fill a whole buffer with zero bytes."""
        self._run(vk.lib.vkCmdFillBuffer, buffer, 0, vk.WHOLE_SIZE, 0)

    def _copy(self, source: Any, target: Any, source_at: int, target_at: int, size: int) -> None:
        region = vk.Structs().new("VkBufferCopy", srcOffset=source_at, dstOffset=target_at, size=size)
        self._run(vk.lib.vkCmdCopyBuffer, source, target, 1, region)

    def upload(self, buffer: Any, offset: int, content: memoryview) -> None:
        """Write ``content`` into ``buffer`` at byte ``offset``."""
        staging = self._staging
        for start in range(0, len(content), CHUNK_BYTES):
            part = content[start : start + CHUNK_BYTES]
            staging.view[: len(part)] = np.frombuffer(part, np.uint8)
            self._copy(staging.buffer, buffer, 0, offset + start, len(part))

    def download(self, buffer: Any, offset: int, size: int) -> bytes:
        """``size`` bytes of ``buffer`` from byte ``offset``."""
        staging, parts = self._staging, []
        for start in range(0, size, CHUNK_BYTES):
            length = min(CHUNK_BYTES, size - start)
            self._copy(buffer, staging.buffer, offset + start, 0, length)
            parts.append(staging.view[:length].tobytes())
        return b"".join(parts)  # a single part is not copied again
