"""The facts of one Vulkan device as frozen, JSON-able data: everything that planning may ask about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from convtrain.graph.types import MatrixShape

KINDS = ("other", "integrated", "discrete", "virtual", "cpu")
"""Device types, in the order of ``VkPhysicalDeviceType``."""


@dataclass(frozen=True)
class Subgroup:
    """Subgroup facts. ``minimum`` and ``maximum`` equal ``size`` where the device does not state a range."""

    size: int
    minimum: int
    maximum: int
    size_control: bool  # a compute pipeline may require a size
    full_subgroups: bool  # and ask for no partly filled subgroup
    max_per_workgroup: int  # subgroups in a workgroup with a required size
    operations: tuple[str, ...]  # usable in compute: "basic", "vote", "arithmetic", "ballot", "shuffle", ...


@dataclass(frozen=True)
class Limits:
    """Sizes in bytes unless a name says otherwise."""

    shared_bytes: int
    workgroup_invocations: int
    workgroup_size: tuple[int, int, int]
    workgroup_count: tuple[int, int, int]
    storage_range: int  # of one storage-buffer binding
    uniform_range: int
    buffer_size: int  # of one VkBuffer
    allocation_size: int  # of one VkDeviceMemory
    allocation_count: int
    storage_buffers: int  # bindable to one compute stage
    storage_alignment: int
    uniform_alignment: int
    texel_elements: int  # of one texel view of a buffer
    texel_alignment: int


@dataclass(frozen=True)
class Heap:
    """A memory heap: bytes, and whether it is the device's own."""

    size: int
    device_local: bool


@dataclass(frozen=True)
class MemoryType:
    """A memory type: its heap's index and its properties."""

    heap: int
    device_local: bool
    host_visible: bool
    host_coherent: bool
    host_cached: bool


@dataclass(frozen=True)
class DeviceSnapshot:
    """One device, as its driver describes it, possibly with features switched off (see ``switches``)."""

    index: int  # position in the loader's list
    name: str
    kind: str  # one of KINDS
    vendor_id: int
    device_id: int
    driver_name: str
    driver_info: str
    driver_version: int
    api_version: tuple[int, int, int]
    pipeline_cache_uuid: str  # hexadecimal
    queue_family: int
    subgroup: Subgroup
    limits: Limits
    heaps: tuple[Heap, ...]
    memory_types: tuple[MemoryType, ...]
    host_import_alignment: int | None  # bytes; None where host memory cannot be imported
    float16: bool
    storage_16bit: bool
    memory_model: bool
    memory_model_device_scope: bool
    int16: bool
    int64: bool
    matrices: tuple[MatrixShape, ...]
    timestamp_bits: int  # 0: no timestamps
    timestamp_period: float  # nanoseconds per tick

    @property
    def api(self) -> str:
        """The Vulkan version, as ``1.3.230``."""
        return ".".join(map(str, self.api_version))

    @property
    def title(self) -> str:
        """How messages name the device."""
        return f"device {self.index} ({self.name})"


def snapshot_from_json(data: Mapping[str, Any]) -> DeviceSnapshot:
    """The inverse of ``convtrain.graph.types.to_json`` for a snapshot. Raises KeyError or TypeError on foreign data."""
    subgroup, limits = dict(data["subgroup"]), dict(data["limits"])
    subgroup["operations"] = tuple(subgroup["operations"])
    for name in ("workgroup_size", "workgroup_count"):
        limits[name] = tuple(limits[name])
    return DeviceSnapshot(
        **{
            **data,
            "api_version": tuple(data["api_version"]),
            "subgroup": Subgroup(**subgroup),
            "limits": Limits(**limits),
            "heaps": tuple(Heap(**item) for item in data["heaps"]),
            "memory_types": tuple(MemoryType(**item) for item in data["memory_types"]),
            "matrices": tuple(MatrixShape(**item) for item in data["matrices"]),
        }
    )
