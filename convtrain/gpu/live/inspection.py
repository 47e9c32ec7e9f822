"""Asks a driver for everything that a snapshot holds. Nothing is assumed: what is not stated counts as absent."""

from __future__ import annotations

from typing import Any

from convtrain.gpu.live import vk
from convtrain.gpu.live.features import CORE_FEATURES, FEATURES, HOST_IMPORT, Version
from convtrain.gpu.snapshot import KINDS, DeviceSnapshot, Heap, Limits, MemoryType, Subgroup
from convtrain.graph.types import MatrixShape

UNSTATED_BUFFER_SIZE = 1 << 30
"""Bytes; the least ``maxBufferSize`` that Vulkan allows, for devices that do not state theirs."""


def _subgroup_operations(mask: int) -> tuple[str, ...]:
    names = ("basic", "vote", "arithmetic", "ballot", "shuffle", "shuffle-relative", "clustered", "quad")
    return tuple(name for bit, name in enumerate(names) if mask >> bit & 1)


def _component(value: int) -> str:
    names = ("f16", "f32", "f64", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64")
    extended = {
        1000141000: "bf16",  # VK_KHR_shader_bfloat16
        1000491000: "s8-packed",  # VK_NV_cooperative_vector
        1000491001: "u8-packed",
        1000491002: "f8-e4m3",
        1000491003: "f8-e5m2",
    }
    return names[value] if value < len(names) else extended.get(value, f"type{value}")


def _scope(value: int) -> str:
    names = {1: "device", 2: "workgroup", 3: "subgroup", 5: "queue-family"}
    return names.get(value, f"scope{value}")


def device_extensions(physical: Any) -> frozenset[str]:
    """Names of the extensions that a device offers."""
    listed = vk.enumerate_all(
        vk.lib.vkEnumerateDeviceExtensionProperties,
        "VkExtensionProperties",
        physical,
        vk.ffi.NULL,
        doing="listing device extensions",
    )
    return frozenset(vk.text(item.extensionName) for item in listed)


def effective_version(physical: Any, instance_api: int) -> tuple[int, int, int]:
    """The Vulkan version that may be used with a device: its own, or the instance's if that is lower."""
    properties = vk.out("VkPhysicalDeviceProperties")
    vk.lib.vkGetPhysicalDeviceProperties(physical, properties)
    version = min(int(properties.apiVersion), instance_api | 0xFFF)
    return version >> 22 & 0x7F, version >> 12 & 0x3FF, version & 0xFFF


def _compute_family(physical: Any) -> tuple[int, int] | None:
    """(index, valid timestamp bits) of the queue family to use: one with graphics as well, if any computes."""
    families = vk.enumerate_all(
        vk.lib.vkGetPhysicalDeviceQueueFamilyProperties, "VkQueueFamilyProperties", physical, doing="listing queues"
    )
    computing = [
        (not item.queueFlags & vk.VK_QUEUE_GRAPHICS_BIT, number, int(item.timestampValidBits))
        for number, item in enumerate(families)
        if item.queueFlags & vk.VK_QUEUE_COMPUTE_BIT
    ]
    return min(computing)[1:] if computing else None


def _flags(physical: Any, version: Version, extensions: frozenset[str]) -> dict[str, bool]:
    """Every optional feature by name, whether the device has it."""
    structs, chain, asked = vk.Structs(), vk.ffi.NULL, {}
    for feature in FEATURES.values():
        if feature.available(version, extensions) and feature.struct not in asked:
            chain = structs.new(feature.struct, pNext=chain)
            asked[feature.struct] = chain
    features = structs.new("VkPhysicalDeviceFeatures2", pNext=chain)
    vk.lib.vkGetPhysicalDeviceFeatures2(physical, features)
    found = {name: bool(getattr(features.features, member)) for name, member in CORE_FEATURES.items()}
    for name, feature in FEATURES.items():
        struct = asked.get(feature.struct)
        found[name] = struct is not None and all(getattr(struct, member) for member in feature.members)
    return found


def _matrices(instance: Any, physical: Any) -> tuple[MatrixShape, ...]:
    name = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"
    call = vk.instance_function(instance, name)
    listed = vk.enumerate_all(call, "VkCooperativeMatrixPropertiesKHR", physical, doing="listing cooperative matrices")
    shapes = [
        MatrixShape(
            int(item.MSize),
            int(item.NSize),
            int(item.KSize),
            _component(item.AType),
            _component(item.BType),
            _component(item.CType),
            _component(item.ResultType),
            _scope(item.scope),
        )
        for item in listed
        if not item.saturatingAccumulation
    ]
    return tuple(dict.fromkeys(shapes))


class _Properties:
    """The property structs of one device that its version and extensions allow to ask for."""

    def __init__(self, physical: Any, version: Version, extensions: frozenset[str]) -> None:
        self._structs = vk.Structs()
        chain = vk.ffi.NULL

        def ask(name: str, core: Version | None, extension: str) -> Any:
            nonlocal chain
            if (core is None or version < core) and extension not in extensions:
                return None
            chain = self._structs.new(name, pNext=chain)
            return chain

        self.subgroup = ask("VkPhysicalDeviceSubgroupProperties", (1, 1), "")
        self.maintenance3 = ask("VkPhysicalDeviceMaintenance3Properties", (1, 1), "VK_KHR_maintenance3")
        self.maintenance4 = ask("VkPhysicalDeviceMaintenance4Properties", (1, 3), "VK_KHR_maintenance4")
        self.driver = ask("VkPhysicalDeviceDriverProperties", (1, 2), "VK_KHR_driver_properties")
        self.control = ask("VkPhysicalDeviceSubgroupSizeControlProperties", (1, 3), "VK_EXT_subgroup_size_control")
        self.host_import = ask("VkPhysicalDeviceExternalMemoryHostPropertiesEXT", None, HOST_IMPORT)
        self.matrix = ask("VkPhysicalDeviceCooperativeMatrixPropertiesKHR", None, "VK_KHR_cooperative_matrix")
        whole = self._structs.new("VkPhysicalDeviceProperties2", pNext=chain)
        vk.lib.vkGetPhysicalDeviceProperties2(physical, whole)
        self.core = whole.properties


def _subgroup(properties: _Properties, flags: dict[str, bool]) -> Subgroup:
    basic, control = properties.subgroup, properties.control
    size = int(basic.subgroupSize)
    in_compute = basic.supportedStages & vk.VK_SHADER_STAGE_COMPUTE_BIT
    controlled = control is not None and bool(control.requiredSubgroupSizeStages & vk.VK_SHADER_STAGE_COMPUTE_BIT)
    return Subgroup(
        size=size,
        minimum=int(control.minSubgroupSize) if control is not None else size,
        maximum=int(control.maxSubgroupSize) if control is not None else size,
        size_control=controlled and flags["subgroup_size"],
        full_subgroups=flags["subgroup_size"],
        max_per_workgroup=int(control.maxComputeWorkgroupSubgroups) if control is not None else 0,
        operations=_subgroup_operations(basic.supportedOperations) if in_compute else (),
    )


def _limits(properties: _Properties) -> Limits:
    core, sizes = properties.core.limits, properties.maintenance4
    return Limits(
        shared_bytes=int(core.maxComputeSharedMemorySize),
        workgroup_invocations=int(core.maxComputeWorkGroupInvocations),
        workgroup_size=tuple(core.maxComputeWorkGroupSize),
        workgroup_count=tuple(core.maxComputeWorkGroupCount),
        storage_range=int(core.maxStorageBufferRange),
        uniform_range=int(core.maxUniformBufferRange),
        buffer_size=int(sizes.maxBufferSize) if sizes is not None else UNSTATED_BUFFER_SIZE,
        allocation_size=int(properties.maintenance3.maxMemoryAllocationSize),
        allocation_count=int(core.maxMemoryAllocationCount),
        storage_buffers=min(core.maxPerStageDescriptorStorageBuffers, core.maxDescriptorSetStorageBuffers),
        storage_alignment=int(core.minStorageBufferOffsetAlignment),
        uniform_alignment=int(core.minUniformBufferOffsetAlignment),
        texel_elements=int(core.maxTexelBufferElements),
        texel_alignment=int(core.minTexelBufferOffsetAlignment),
    )


def _memory(physical: Any) -> tuple[tuple[Heap, ...], tuple[MemoryType, ...]]:
    memory = vk.out("VkPhysicalDeviceMemoryProperties")
    vk.lib.vkGetPhysicalDeviceMemoryProperties(physical, memory)
    heaps = tuple(
        Heap(int(item.size), bool(item.flags & vk.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT))
        for item in memory.memoryHeaps[0 : memory.memoryHeapCount]
    )
    types = tuple(
        MemoryType(
            int(item.heapIndex),
            bool(item.propertyFlags & vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT),
            bool(item.propertyFlags & vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT),
            bool(item.propertyFlags & vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT),
            bool(item.propertyFlags & vk.VK_MEMORY_PROPERTY_HOST_CACHED_BIT),
        )
        for item in memory.memoryTypes[0 : memory.memoryTypeCount]
    )
    return heaps, types


def inspect(instance: Any, physical: Any, index: int, instance_api: int) -> DeviceSnapshot | None:
    """The snapshot of one device, or None when it cannot compute or only knows Vulkan 1.0."""
    api = effective_version(physical, instance_api)
    family = _compute_family(physical)
    if family is None or api < (1, 1, 0):
        return None
    version, extensions = api[:2], device_extensions(physical)
    properties = _Properties(physical, version, extensions)
    flags = _flags(physical, version, extensions)
    core, driver, imports = properties.core, properties.driver, properties.host_import
    in_compute = properties.matrix is not None and bool(
        properties.matrix.cooperativeMatrixSupportedStages & vk.VK_SHADER_STAGE_COMPUTE_BIT
    )
    heaps, types = _memory(physical)
    return DeviceSnapshot(
        index=index,
        name=vk.text(core.deviceName),
        kind=KINDS[core.deviceType] if core.deviceType < len(KINDS) else "other",
        vendor_id=int(core.vendorID),
        device_id=int(core.deviceID),
        driver_name=vk.text(driver.driverName) if driver is not None else "",
        driver_info=vk.text(driver.driverInfo) if driver is not None else "",
        driver_version=int(core.driverVersion),
        api_version=api,
        pipeline_cache_uuid=bytes(core.pipelineCacheUUID).hex(),
        queue_family=family[0],
        subgroup=_subgroup(properties, flags),
        limits=_limits(properties),
        heaps=heaps,
        memory_types=types,
        host_import_alignment=int(imports.minImportedHostPointerAlignment) if imports is not None else None,
        float16=flags["float16"],
        storage_16bit=flags["storage_16bit"],
        memory_model=flags["memory_model"],
        memory_model_device_scope=flags["memory_model_device_scope"],
        int16=flags["int16"],
        int64=flags["int64"],
        matrices=_matrices(instance, physical) if flags["matrices"] and in_compute else (),
        timestamp_bits=family[1],
        timestamp_period=float(core.limits.timestampPeriod),
    )
