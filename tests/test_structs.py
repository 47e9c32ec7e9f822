"""Vulkan structs built from keywords: whatever they point to stays alive."""

from __future__ import annotations

import gc

import pytest

from convtrain.errors import InputError
from convtrain.gpu.live import vk

try:
    vk.lib  # noqa: B018
except InputError as error:
    pytest.skip(str(error), allow_module_level=True)


def churn() -> None:
    """Free what is unreachable and write over it."""
    gc.collect()
    for size in range(1, 200):
        vk.ffi.new("char[]", b"\xff" * size)


def test_types_are_stamped() -> None:
    structs = vk.Structs()
    assert structs.new("VkFenceCreateInfo").sType == vk.VK_STRUCTURE_TYPE_FENCE_CREATE_INFO
    chained = structs.new("VkPhysicalDevice16BitStorageFeatures")
    assert chained.sType == vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES
    named = structs.new("VkPhysicalDeviceShaderFloat16Int8Features")
    assert named.sType == vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES
    assert structs.new("VkBufferCopy", size=7).size == 7


def test_strings_and_lists_of_strings_survive() -> None:
    structs = vk.Structs()
    made = structs.new("VkInstanceCreateInfo", enabledLayerCount=2, ppEnabledLayerNames=["one", "and two"])
    churn()
    assert [vk.text(made.ppEnabledLayerNames[n]) for n in range(2)] == ["one", "and two"]


def test_structs_by_pointer_by_value_and_in_lists_keep_what_they_point_to() -> None:
    structs = vk.Structs()
    stage = structs.new(
        "VkPipelineShaderStageCreateInfo",
        pNext=structs.new("VkPipelineShaderStageRequiredSubgroupSizeCreateInfo", requiredSubgroupSize=32),
        pName="main",
    )
    pipeline = structs.new("VkComputePipelineCreateInfo", stage=stage)
    queue = structs.new("VkDeviceQueueCreateInfo", queueCount=1, pQueuePriorities=structs.array("float", [0.5]))
    device = structs.new("VkDeviceCreateInfo", queueCreateInfoCount=1, pQueueCreateInfos=[queue])
    del stage, queue
    churn()
    assert vk.text(pipeline.stage.pName) == "main"
    size = vk.ffi.cast("VkPipelineShaderStageRequiredSubgroupSizeCreateInfo *", pipeline.stage.pNext)
    assert size.requiredSubgroupSize == 32
    assert device.pQueueCreateInfos[0].pQueuePriorities[0] == 0.5


def test_none_is_a_null_pointer() -> None:
    assert vk.Structs().new("VkInstanceCreateInfo", pApplicationInfo=None).pApplicationInfo == vk.ffi.NULL


def test_unknown_fields_and_constants_are_errors() -> None:
    with pytest.raises(KeyError):
        vk.Structs().new("VkFenceCreateInfo", flag=1)
    with pytest.raises(AttributeError):
        _ = vk.VK_NO_SUCH_CONSTANT
    with pytest.raises(AttributeError):
        _ = vk.something
