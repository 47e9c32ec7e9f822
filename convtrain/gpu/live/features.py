"""Where each optional device feature lives in Vulkan: asked by the snapshot, switched on by the device."""

from __future__ import annotations

from dataclasses import dataclass

Version = tuple[int, int]


@dataclass(frozen=True)
class Feature:
    """Members of a feature struct that must all be true, core since ``core`` or else from ``extension``."""

    struct: str
    members: tuple[str, ...]
    core: Version | None
    extension: str

    def available(self, version: Version, extensions: frozenset[str]) -> bool:
        """Whether the struct may be used with a device of this Vulkan version and these extensions."""
        return (self.core is not None and version >= self.core) or self.extension in extensions

    def needs_extension(self, version: Version) -> bool:
        return self.core is None or version < self.core


FEATURES = {
    "storage_16bit": Feature(
        "VkPhysicalDevice16BitStorageFeatures",
        ("storageBuffer16BitAccess", "uniformAndStorageBuffer16BitAccess"),
        (1, 1),
        "VK_KHR_16bit_storage",
    ),
    "float16": Feature(
        "VkPhysicalDeviceShaderFloat16Int8Features", ("shaderFloat16",), (1, 2), "VK_KHR_shader_float16_int8"
    ),
    "memory_model": Feature(
        "VkPhysicalDeviceVulkanMemoryModelFeatures", ("vulkanMemoryModel",), (1, 2), "VK_KHR_vulkan_memory_model"
    ),
    "memory_model_device_scope": Feature(
        "VkPhysicalDeviceVulkanMemoryModelFeatures",
        ("vulkanMemoryModel", "vulkanMemoryModelDeviceScope"),
        (1, 2),
        "VK_KHR_vulkan_memory_model",
    ),
    "subgroup_size": Feature(
        "VkPhysicalDeviceSubgroupSizeControlFeatures",
        ("subgroupSizeControl", "computeFullSubgroups"),
        (1, 3),
        "VK_EXT_subgroup_size_control",
    ),
    "matrices": Feature(
        "VkPhysicalDeviceCooperativeMatrixFeaturesKHR", ("cooperativeMatrix",), None, "VK_KHR_cooperative_matrix"
    ),
}
"""By the names that an execution plan's ``features`` uses."""

CORE_FEATURES = {"int16": "shaderInt16", "int64": "shaderInt64"}
"""Members of ``VkPhysicalDeviceFeatures`` by the same names."""
HOST_IMPORT = "VK_EXT_external_memory_host"
PORTABILITY = "VK_KHR_portability_subset"
