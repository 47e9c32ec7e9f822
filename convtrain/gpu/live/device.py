"""The logical device: one compute queue, one command pool, and only the features that the plan needs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from convtrain.errors import RunError
from convtrain.gpu.live import vk
from convtrain.gpu.live.features import CORE_FEATURES, FEATURES, HOST_IMPORT, PORTABILITY
from convtrain.gpu.live.inspection import device_extensions
from convtrain.gpu.live.instance import Instance
from convtrain.gpu.snapshot import DeviceSnapshot

WAIT_SLICE = 100_000_000
"""Nanoseconds between two looks of a waiting host at its signals (Ctrl-C)."""


class Device:
    """An open device. ``resources`` takes the destruction of what is made from it; ``close`` runs it in reverse."""

    def __init__(self, instance: Instance, snapshot: DeviceSnapshot, features: frozenset[str]) -> None:
        self.snapshot = snapshot
        self.resources = ExitStack()
        self._closed = False
        physical = instance.physical_devices()
        if snapshot.index >= len(physical):
            raise RunError(f"{snapshot.title} is no longer present.")
        self.physical = physical[snapshot.index]
        self.host_import = snapshot.host_import_alignment is not None
        self.handle = self._create(features)
        instance.open_devices.add(self)
        self.resources.callback(instance.open_devices.discard, self)
        self.resources.callback(vk.lib.vkDestroyDevice, self.handle, vk.ffi.NULL)
        queue = vk.out("VkQueue")
        vk.lib.vkGetDeviceQueue(self.handle, snapshot.queue_family, 0, queue)
        self.queue = queue[0]
        try:
            self.pool = self._create_pool()
        except BaseException:
            self.close()
            raise

    def _create(self, features: frozenset[str]) -> Any:
        structs, chain, version = vk.Structs(), vk.ffi.NULL, self.snapshot.api_version[:2]
        offered = device_extensions(self.physical)
        extensions = {HOST_IMPORT} if self.host_import else set()
        extensions |= {PORTABILITY} & offered
        asked: dict[str, Any] = {}
        for name in sorted(features & FEATURES.keys()):
            feature = FEATURES[name]
            if feature.needs_extension(version):
                extensions.add(feature.extension)
            if feature.struct not in asked:
                chain = asked[feature.struct] = structs.new(feature.struct, pNext=chain)
            for member in feature.members:
                setattr(asked[feature.struct], member, 1)
        core = structs.new("VkPhysicalDeviceFeatures2", pNext=chain)
        for name in features & CORE_FEATURES.keys():
            setattr(core.features, CORE_FEATURES[name], 1)
        queue = structs.new(
            "VkDeviceQueueCreateInfo",
            queueFamilyIndex=self.snapshot.queue_family,
            queueCount=1,
            pQueuePriorities=structs.array("float", [1.0]),
        )
        info = structs.new(
            "VkDeviceCreateInfo",
            pNext=core,
            queueCreateInfoCount=1,
            pQueueCreateInfos=[queue],
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=sorted(extensions),
        )
        return self.make("VkDevice", vk.lib.vkCreateDevice, self.physical, info, doing=f"opening {self.snapshot.title}")

    def _create_pool(self) -> Any:
        structs = vk.Structs()
        info = structs.new(
            "VkCommandPoolCreateInfo",
            flags=vk.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
            queueFamilyIndex=self.snapshot.queue_family,
        )
        return self.own("VkCommandPool", info, doing="creating a command pool")

    @staticmethod
    def make(kind: str, create: Any, parent: Any, info: Any, *, doing: str) -> Any:
        """Call ``create(parent, info, NULL, out)`` and return the handle. Raises RunError."""
        handle = vk.out(kind)
        vk.check(create(parent, info, vk.ffi.NULL, handle), doing)
        return handle[0]

    def own(self, kind: str, info: Any, *, doing: str) -> Any:
        """Create an object of this device that lives until ``close``: ``own("VkFence", info)``. Raises RunError."""
        name = kind[2:]
        handle = self.make(kind, getattr(vk.lib, f"vkCreate{name}"), self.handle, info, doing=doing)
        self.resources.callback(getattr(vk.lib, f"vkDestroy{name}"), self.handle, handle, vk.ffi.NULL)
        return handle

    def command_buffer(self) -> Any:
        """A new command buffer; it lives as long as the pool."""
        info = vk.Structs().new(
            "VkCommandBufferAllocateInfo",
            commandPool=self.pool,
            level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
            commandBufferCount=1,
        )
        made = vk.out("VkCommandBuffer")
        vk.check(vk.lib.vkAllocateCommandBuffers(self.handle, info, made), "allocating a command buffer")
        return made[0]

    def close(self) -> None:
        """Wait until the device is idle and destroy everything. Safe to call twice, or on a lost device."""
        if not self._closed:
            self._closed = True
            vk.lib.vkDeviceWaitIdle(self.handle)
            self.resources.close()
