"""Device memory in few large buffers, and the host arena that uniforms and host buffers live in."""

from __future__ import annotations

import logging
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from convtrain.errors import RunError
from convtrain.gpu.live import vk
from convtrain.gpu.live.device import Device
from convtrain.gpu.placement import device_types, host_types, round_up

Bytes = npt.NDArray[np.uint8]
_log = logging.getLogger(__name__)


def _usage() -> int:
    usage: int = (
        vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
        | vk.VK_BUFFER_USAGE_UNIFORM_TEXEL_BUFFER_BIT
        | vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
        | vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT
    )
    return usage


class _Bound:
    """A buffer with memory of its own; both are destroyed with the device."""

    def __init__(self, device: Device, size: int, usage: int, doing: str, imported: Any = None) -> None:
        structs = vk.Structs()
        chain = vk.ffi.NULL
        if imported is not None:
            handle_type = vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT
            chain = structs.new("VkExternalMemoryBufferCreateInfo", handleTypes=handle_type)
        info = structs.new("VkBufferCreateInfo", pNext=chain, size=size, usage=usage)
        self._device, self._doing = device, doing
        self.buffer = device.make("VkBuffer", vk.lib.vkCreateBuffer, device.handle, info, doing=doing)
        self.memory = vk.ffi.NULL
        device.resources.callback(self._destroy)
        self.needs = vk.out("VkMemoryRequirements")
        vk.lib.vkGetBufferMemoryRequirements(device.handle, self.buffer, self.needs)

    def _destroy(self) -> None:
        vk.lib.vkDestroyBuffer(self._device.handle, self.buffer, vk.ffi.NULL)
        vk.lib.vkFreeMemory(self._device.handle, self.memory, vk.ffi.NULL)

    def allocate(self, size: int, memory_type: int, chain: Any) -> int:
        """Allocate and bind; returns the Vulkan result so that a caller may fall back."""
        info = vk.Structs().new("VkMemoryAllocateInfo", pNext=chain, allocationSize=size, memoryTypeIndex=memory_type)
        memory = vk.out("VkDeviceMemory")
        result: int = vk.lib.vkAllocateMemory(self._device.handle, info, vk.ffi.NULL, memory)
        if result == vk.VK_SUCCESS:
            self.memory = memory[0]
            vk.check(vk.lib.vkBindBufferMemory(self._device.handle, self.buffer, self.memory, 0), self._doing)
        return result


def device_block(device: Device, size: int) -> Any:
    """A device-local buffer of ``size`` bytes for storage and copies. Raises RunError when memory is exhausted."""
    doing = f"allocating {size:,} bytes of device memory"
    made = _Bound(device, size, _usage(), doing)
    kinds = device_types(device.snapshot, made.needs.memoryTypeBits)
    vk.check(made.allocate(made.needs.size, kinds[0], vk.ffi.NULL), doing)
    return made.buffer


class HostBlock:
    """Memory that host and device both see: ``buffer`` for the device, ``view`` (bytes) for the host.

    Imported host memory where the device allows it, else mapped memory; coherent either way. The view must not be
    used after the device is closed.
    """

    def __init__(self, device: Device, size: int, usage: int, *, may_import: bool = True) -> None:
        self.imported = False
        alignment = device.snapshot.host_import_alignment
        if may_import and device.host_import and alignment is not None:
            self.imported = self._import(device, round_up(size, alignment), usage)
        if not self.imported:
            self._map(device, size, usage)

    def _import(self, device: Device, size: int, usage: int) -> bool:
        pages = mmap.mmap(-1, round_up(size, mmap.PAGESIZE))
        pointer = vk.ffi.cast("void *", vk.ffi.from_buffer(pages))
        handle_type = vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT
        structs = vk.Structs()
        query = vk.device_function(device.handle, "vkGetMemoryHostPointerPropertiesEXT")
        allowed = structs.new("VkMemoryHostPointerPropertiesEXT")
        if query(device.handle, handle_type, pointer, allowed) != vk.VK_SUCCESS:
            return self._refused(device)
        made = _Bound(device, size, usage, "importing host memory", imported=pages)
        kinds = host_types(device.snapshot, allowed.memoryTypeBits & made.needs.memoryTypeBits)
        chain = structs.new("VkImportMemoryHostPointerInfoEXT", handleType=handle_type, pHostPointer=pointer)
        if not kinds or made.needs.size > len(pages) or made.allocate(size, kinds[0], chain) != vk.VK_SUCCESS:
            return self._refused(device)
        self.buffer = made.buffer
        self.view: Bytes = np.frombuffer(pages, dtype=np.uint8)  # keeps the pages alive
        return True

    @staticmethod
    def _refused(device: Device) -> bool:
        _log.info("%s refuses to import host memory; mapped memory is used instead.", device.snapshot.title)
        return False

    def _map(self, device: Device, size: int, usage: int) -> None:
        doing = f"allocating {size:,} bytes of host-visible memory"
        made = _Bound(device, size, usage, doing)
        kinds = host_types(device.snapshot, made.needs.memoryTypeBits)
        if not kinds:
            raise RunError(f"{device.snapshot.title} has no memory that the host can map.")
        vk.check(made.allocate(made.needs.size, kinds[0], vk.ffi.NULL), doing)
        address = vk.out("void *")
        vk.check(vk.lib.vkMapMemory(device.handle, made.memory, 0, vk.WHOLE_SIZE, 0, address), doing)
        self.buffer = made.buffer
        self.view = np.frombuffer(vk.ffi.buffer(address[0], size), dtype=np.uint8)
        self.view[:] = 0


def host_arena(device: Device, size: int) -> HostBlock:
    """Zeroed shared memory for uniform blocks and host buffers."""
    return HostBlock(device, size, _usage() | vk.VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT)


def staging_block(device: Device, size: int) -> HostBlock:
    """Mapped memory that uploads and downloads pass through."""
    usage = vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT | vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT
    return HostBlock(device, size, usage, may_import=False)
