"""The Vulkan instance, the list of devices, and the choice of one."""

from __future__ import annotations

import atexit
import os
from typing import Any, Protocol

from convtrain.errors import InputError
from convtrain.gpu.live import inspection, validation, vk
from convtrain.gpu.snapshot import DeviceSnapshot
from convtrain.gpu.switches import Switches

_RANK = ("discrete", "integrated", "virtual", "cpu", "other")
"""Types of device in the order in which one is taken when none was asked for."""


class _Closable(Protocol):
    def close(self) -> None: ...


class Instance:
    """A Vulkan instance, with the validation layer when asked for."""

    def __init__(self, validate: bool = False) -> None:
        self.open_devices: set[_Closable] = set()
        self.messages: validation.Messages | None = None
        self.api = self._loader_version()
        self.handle = self._create(validate)
        if self.messages is not None:
            self.messages.attach(self.handle)

    @staticmethod
    def _loader_version() -> int:
        version = vk.out("uint32_t")
        pointer = vk.lib.vkGetInstanceProcAddr(vk.ffi.NULL, b"vkEnumerateInstanceVersion")
        if pointer == vk.ffi.NULL or vk.ffi.cast("PFN_vkEnumerateInstanceVersion", pointer)(version) < 0:
            version[0] = 1 << 22
        if version[0] < vk.API_1_1:
            raise InputError("The Vulkan loader only knows Vulkan 1.0 and 1.1 is needed. Install a newer libvulkan1.")
        return min(int(version[0]), vk.API_1_3)

    def _create(self, validate: bool) -> Any:
        structs = vk.Structs()
        listed = vk.enumerate_all(
            vk.lib.vkEnumerateInstanceExtensionProperties,
            "VkExtensionProperties",
            vk.ffi.NULL,
            doing="listing instance extensions",
        )
        names = {vk.text(item.extensionName) for item in listed}
        extensions, layers, flags, chain = [], [], 0, vk.ffi.NULL
        if "VK_KHR_portability_enumeration" in names:
            extensions.append("VK_KHR_portability_enumeration")
            flags = vk.VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR
        if validate:
            layer_list = vk.enumerate_all(
                vk.lib.vkEnumerateInstanceLayerProperties, "VkLayerProperties", doing="listing layers"
            )
            validation.require_layer({vk.text(item.layerName) for item in layer_list})
            layers.append(validation.LAYER)
            extensions += ["VK_EXT_debug_utils", "VK_EXT_validation_features"]
            self.messages = validation.Messages()
            chain = validation.features(structs, self.messages.create_info)
        application = structs.new("VkApplicationInfo", pApplicationName="convtrain", apiVersion=self.api)
        info = structs.new(
            "VkInstanceCreateInfo",
            pNext=chain,
            flags=flags,
            pApplicationInfo=application,
            enabledLayerCount=len(layers),
            ppEnabledLayerNames=layers,
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=extensions,
        )
        handle = vk.out("VkInstance")
        result = vk.lib.vkCreateInstance(info, vk.ffi.NULL, handle)
        if result == vk.VK_ERROR_INCOMPATIBLE_DRIVER:
            raise _no_driver()
        vk.check(result, "creating the Vulkan instance")
        return handle[0]

    def physical_devices(self) -> list[Any]:
        """Every device's handle. Raises InputError when there is no driver or no device."""
        found = vk.out("uint32_t")
        result = vk.lib.vkEnumeratePhysicalDevices(self.handle, found, vk.ffi.NULL)
        if result in (vk.VK_ERROR_INITIALIZATION_FAILED, vk.VK_ERROR_INCOMPATIBLE_DRIVER) or found[0] == 0:
            raise _no_driver()
        call = vk.lib.vkEnumeratePhysicalDevices
        return list(vk.enumerate_all(call, "VkPhysicalDevice", self.handle, doing="listing devices"))

    def close(self) -> None:
        """Close the devices that are still open, then the instance."""
        for device in list(self.open_devices):
            device.close()
        if self.handle is not None:
            if self.messages is not None:
                self.messages.detach(self.handle)
            vk.lib.vkDestroyInstance(self.handle, vk.ffi.NULL)
            self.handle = None


def _no_driver() -> InputError:
    return InputError(
        "The Vulkan loader is installed, but no driver offers a device. For a GPU install its vendor's driver; "
        "on Debian or Ubuntu 'apt install mesa-vulkan-drivers' brings the open ones, and one that runs on the CPU."
    )


_shared: dict[bool, Instance] = {}


def shared_instance(validate: bool | None = None) -> Instance:
    """The process's one instance (loading drivers is slow), with validation when ``CONV_VALIDATE`` says so."""
    if validate is None:
        validate = Switches.from_environment(os.environ).validate
    if validate not in _shared:
        _shared[validate] = Instance(validate)
    return _shared[validate]


@atexit.register
def close_shared() -> None:
    """Close the process's instances and what is still open on them."""
    while _shared:
        _shared.popitem()[1].close()


def list_devices() -> list[DeviceSnapshot]:
    """A snapshot of every device that can compute. Raises InputError without a loader, a driver or a device."""
    instance = shared_instance()
    handles = instance.physical_devices()
    found = [inspection.inspect(instance.handle, item, n, instance.api) for n, item in enumerate(handles)]
    usable = [snapshot for snapshot in found if snapshot is not None]
    if not usable:
        raise _no_driver()
    return usable


def choose_device(selector: str | None = None) -> DeviceSnapshot:
    """The device with this index or with this text in its name; None: the best type of device there is.

    Raises InputError when the text is empty, fits no device, or fits several.
    """
    if selector is not None and not selector.strip():
        raise InputError("The device asked for is empty: give an index or a part of a name from `convtrain devices`.")
    devices = list_devices()
    if selector is None:
        return min(devices, key=lambda item: (_RANK.index(item.kind), item.index))
    if selector.isascii() and selector.isdigit():
        fitting = [item for item in devices if item.index == int(selector)]
    else:
        fitting = [item for item in devices if selector.casefold() in item.name.casefold()]
    if len(fitting) == 1:
        return fitting[0]
    listing = "; ".join(f"{item.index}: {item.name}" for item in (fitting or devices))
    if fitting:
        raise InputError(f"Several devices fit '{selector}' ({listing}). Choose one by its index.")
    raise InputError(f"There is no Vulkan device '{selector}'. Present: {listing}.")
