"""The Khronos validation layer with synchronisation validation, its messages collected (``CONV_VALIDATE=1``)."""

from __future__ import annotations

import logging
from typing import Any

from convtrain.errors import InputError
from convtrain.gpu.live import vk

LAYER = "VK_LAYER_KHRONOS_validation"
_log = logging.getLogger(__name__)


def require_layer(available: set[str]) -> None:
    """Raises InputError when the layer is not installed."""
    if LAYER not in available:
        raise InputError(
            "CONV_VALIDATE is set, but the Khronos validation layer is not installed. "
            "On Debian or Ubuntu: apt install vulkan-validationlayers."
        )


def features(structs: vk.Structs, after: Any) -> Any:
    """The struct that switches synchronisation validation on, for the chain of the instance's create info."""
    return structs.new(
        "VkValidationFeaturesEXT",
        pNext=after,
        enabledValidationFeatureCount=1,
        pEnabledValidationFeatures=[vk.VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT],
    )


class Messages:
    """Collects what the layer reports, warnings and errors, and logs each once."""

    def __init__(self) -> None:
        self.collected: list[str] = []
        self._structs = vk.Structs()
        self._handle: Any = None
        self._callback = vk.ffi.callback(
            "VkBool32(VkDebugUtilsMessageSeverityFlagBitsEXT, VkDebugUtilsMessageTypeFlagsEXT, "
            "const VkDebugUtilsMessengerCallbackDataEXT *, void *)",
            self._receive,
        )
        self.create_info = self._structs.new(
            "VkDebugUtilsMessengerCreateInfoEXT",
            messageSeverity=vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT
            | vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
            messageType=vk.VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
            pfnUserCallback=self._callback,
        )

    def _receive(self, _severity: int, _kind: int, data: Any, _user: Any) -> int:
        message = vk.text(data.pMessage)
        if message not in self.collected:
            _log.error("%s", message)
        self.collected.append(message)
        return 0

    def attach(self, instance: Any) -> None:
        """Start to listen to an instance."""
        create = vk.instance_function(instance, "vkCreateDebugUtilsMessengerEXT")
        handle = vk.out("VkDebugUtilsMessengerEXT")
        vk.check(create(instance, self.create_info, vk.ffi.NULL, handle), "creating the debug messenger")
        self._handle = handle[0]

    def detach(self, instance: Any) -> None:
        """Stop to listen, before the instance goes."""
        if self._handle is not None:
            vk.instance_function(instance, "vkDestroyDebugUtilsMessengerEXT")(instance, self._handle, vk.ffi.NULL)
            self._handle = None
