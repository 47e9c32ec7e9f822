"""Submitting command buffers and waiting for them, as cheaply as Python can."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from convtrain.gpu.live import vk
from convtrain.gpu.live.device import WAIT_SLICE, Device


@dataclass
class Ticket:
    """Work on its way. ``done`` once somebody has waited for it."""

    fence: Any  # a C array of one fence
    done: bool = False


class Queue:
    """The device's queue. ``depth`` bounds the submits that may be outstanding (0: no bound)."""

    def __init__(self, device: Device, depth: int = 0) -> None:
        self._device = device
        self._depth = depth
        self._free: list[Any] = []
        self._outstanding: deque[Ticket] = deque()
        self._submit, self._wait, self._reset = (
            vk.lib.vkQueueSubmit,
            vk.lib.vkWaitForFences,
            vk.lib.vkResetFences,
        )

    def _fence(self) -> Any:
        if self._free:
            return self._free.pop()
        info = vk.Structs().new("VkFenceCreateInfo")
        return vk.ffi.new("VkFence[]", [self._device.own("VkFence", info, doing="creating a fence")])

    def submit(self, infos: Sequence[Any]) -> Ticket:
        """Submit each of the ``VkSubmitInfo *`` in order; the ticket stands for all of them. Raises RunError."""
        for info in infos[:-1]:
            self._bounded()
            if self._depth:
                self._outstanding.append(self._one(info))
            else:
                vk.check(self._submit(self._device.queue, 1, info, vk.ffi.NULL), "submitting work")
        self._bounded()
        ticket = self._one(infos[-1])
        if self._depth:
            self._outstanding.append(ticket)
        return ticket

    def _one(self, info: Any) -> Ticket:
        fence = self._fence()
        vk.check(self._submit(self._device.queue, 1, info, fence[0]), "submitting work")
        return Ticket(fence)

    def _bounded(self) -> None:
        while self._depth and len(self._outstanding) >= self._depth:
            self.wait(self._outstanding.popleft())

    def wait(self, ticket: Ticket) -> None:
        """Block until the work is done, letting signal handlers run meanwhile. Raises RunError on a lost device."""
        if ticket.done:
            return
        handle = self._device.handle
        while (result := self._wait(handle, 1, ticket.fence, 1, WAIT_SLICE)) == vk.VK_TIMEOUT:
            pass
        vk.check(result, "waiting for the device")
        vk.check(self._reset(handle, 1, ticket.fence), "resetting a fence")
        ticket.done = True
        self._free.append(ticket.fence)


def submit_info(structs: vk.Structs, buffers: Sequence[Any]) -> Any:
    """A ``VkSubmitInfo *`` for command buffers (one may stand in it several times)."""
    return structs.new("VkSubmitInfo", commandBufferCount=len(buffers), pCommandBuffers=list(buffers))
