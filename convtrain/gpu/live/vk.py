"""Access to Vulkan through the raw cffi layer of the ``vulkan`` package, and safe construction of its structs.

``vk.lib``, ``vk.ffi`` and every ``vk.VK_…`` constant are looked up in the package at first use, not at import:
importing ``vulkan`` fails where no loader is installed, and a person then gets a sentence instead of a traceback.

The package's own wrappers are not used: they lose what nested structs point to as soon as a temporary dies, and
cost several microseconds a call.
"""

from __future__ import annotations

import functools
from typing import Any

from convtrain.errors import InputError, RunError

WHOLE_SIZE = 2**64 - 1
DISPATCH_BASE = 0x10  # VK_PIPELINE_CREATE_DISPATCH_BASE
FULL_SUBGROUPS = 0x2  # VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT
API_1_1, API_1_3 = (1 << 22 | minor << 12 for minor in (1, 3))

_FAILURES = {
    "VK_ERROR_DEVICE_LOST": "the device was lost: the driver reset it, or a submit ran too long",
    "VK_ERROR_OUT_OF_DEVICE_MEMORY": "device memory is exhausted; close other programs or choose a smaller image",
    "VK_ERROR_OUT_OF_HOST_MEMORY": "host memory is exhausted; close other programs or choose a smaller image",
    "VK_ERROR_INITIALIZATION_FAILED": "the driver failed to initialise",
    "VK_ERROR_TOO_MANY_OBJECTS": "too many device objects",
}


@functools.cache
def _package() -> Any:
    try:
        import vulkan
    except OSError as error:
        raise InputError(
            "No Vulkan loader was found. On Debian or Ubuntu: apt install libvulkan1 mesa-vulkan-drivers "
            "(the second package also brings a driver that needs no GPU)."
        ) from error
    return vulkan


def __getattr__(name: str) -> Any:
    """``lib``, ``ffi`` and constants, from the package. Raises InputError when there is no Vulkan loader."""
    if name in ("lib", "ffi") or name.startswith("VK_"):
        value = getattr(_package(), name)
        globals()[name] = value
        return value
    raise AttributeError(name)


@functools.cache
def _result_names() -> dict[int, str]:
    package = _package()
    names = [name for name in dir(package) if name.startswith("VK_ERROR_") and "__" not in name]
    return {getattr(package, name): name for name in reversed(names)}


def check(result: int, doing: str) -> None:
    """Raise RunError, in plain words, when a call failed while ``doing`` something."""
    if result < 0:
        name = _result_names().get(result, f"Vulkan error {result}")
        raise RunError(f"The GPU failed while {doing}: {_FAILURES.get(name, name)}.")


@functools.cache
def _structure_types() -> dict[str, int]:
    package, prefix = _package(), "VK_STRUCTURE_TYPE_"
    names = (name for name in dir(package) if name.startswith(prefix) and "__" not in name)
    return {name[len(prefix) :].replace("_", "").lower(): getattr(package, name) for name in names}


class Structs:
    """Builds C structs from keyword arguments and keeps all of them alive as long as it lives itself.

    ``new("VkDeviceCreateInfo", pNext=…, pQueueCreateInfos=[…])`` sets ``sType``; strings become ``char[]``, lists
    become arrays, and structs made here may be nested by pointer, by value or in a list.
    """

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def new(self, name: str, **fields: Any) -> Any:
        """A pointer to a new struct of type ``name``, zero but for ``fields``."""
        ffi = _package().ffi
        made = self._keep(ffi.new(f"{name} *"))
        members = dict(ffi.typeof(name).fields)
        if "sType" in members:
            made.sType = _structure_types()[name[2:].lower()]
        for key, value in fields.items():
            setattr(made, key, self._convert(members[key].type, value))
        return made

    def array(self, name: str, values: Any) -> Any:
        """A C array of ``name`` from a list of numbers, handles or structs made here."""
        ffi = _package().ffi
        kind = ffi.typeof(name).kind
        return self._keep(ffi.new(f"{name}[]", [value[0] if kind == "struct" else value for value in values]))

    def _keep(self, value: Any) -> Any:
        self._kept.append(value)
        return value

    def _convert(self, kind: Any, value: Any) -> Any:
        ffi = _package().ffi
        if kind.kind == "struct" and isinstance(value, ffi.CData) and ffi.typeof(value).kind == "pointer":
            return value[0]
        if kind.kind != "pointer":
            return value
        if value is None:
            return ffi.NULL
        if isinstance(value, str):
            return self._keep(ffi.new("char[]", value.encode()))
        if isinstance(value, (list, tuple)):
            if kind.item.kind == "pointer" and kind.item.item.cname == "char":
                texts = [self._convert(kind.item, text) for text in value]
                return self._keep(ffi.new("char *[]", texts))
            return self.array(kind.item.cname, value)
        return value


def out(name: str) -> Any:
    """A zeroed cell for a result, for example ``out("VkBuffer")``; read it with ``[0]``."""
    return _package().ffi.new(f"{name} *")


def enumerate_all(call: Any, name: str, *arguments: Any, doing: str) -> Any:
    """Everything a count-then-fill call lists, as a C array of ``name``; structs have their ``sType`` set."""
    package = _package()
    count = out("uint32_t")
    while True:
        _checked(call(*arguments, count, package.ffi.NULL), doing)
        items = package.ffi.new(f"{name}[]", count[0])
        kind = package.ffi.typeof(name)
        if kind.kind == "struct" and "sType" in dict(kind.fields):
            for item in items:
                item.sType = _structure_types()[name[2:].lower()]
        result = _checked(call(*arguments, count, items), doing)
        if result != package.VK_INCOMPLETE and count[0] == len(items):
            return items


def _checked(result: int | None, doing: str) -> int:
    result = result or 0
    check(result, doing)
    return result


def text(value: Any) -> str:
    """A C string as Python text."""
    decoded: str = _package().ffi.string(value).decode(errors="replace")
    return decoded


def instance_function(instance: Any, name: str) -> Any:
    """An extension's function by name. Raises RunError when the driver does not have it."""
    return _function(_package().lib.vkGetInstanceProcAddr(instance, name.encode()), name)


def device_function(device: Any, name: str) -> Any:
    """An extension's function by name. Raises RunError when the driver does not have it."""
    return _function(_package().lib.vkGetDeviceProcAddr(device, name.encode()), name)


def _function(pointer: Any, name: str) -> Any:
    ffi = _package().ffi
    if pointer == ffi.NULL:
        raise RunError(f"The Vulkan driver does not provide {name} although it lists the extension.")
    return ffi.cast(f"PFN_{name}", pointer)
