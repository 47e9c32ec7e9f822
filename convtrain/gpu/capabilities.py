"""What a device can do for this program, class by class, in words: the general answer where no archive is at hand."""

from __future__ import annotations

from dataclasses import dataclass

from convtrain.gpu.requirements import describe_matrix
from convtrain.gpu.snapshot import DeviceSnapshot

LEAST_SHARED = 32 << 10
"""Bytes of shared memory that the scalar variants may take."""


@dataclass(frozen=True)
class Capability:
    """A class of variants or a faculty of the device: whether it has it, and the detail or the reason why not."""

    name: str
    present: bool
    detail: str


def capabilities(device: DeviceSnapshot) -> tuple[Capability, ...]:
    """The classes that matter, the plainest first."""
    return (_scalar(device), _fp16(device), _subgroup_size(device), _matrices(device), *_host(device))


def _scalar(device: DeviceSnapshot) -> Capability:
    shared = device.limits.shared_bytes
    fits = shared >= LEAST_SHARED
    return Capability("scalar fp32", fits, f"{shared >> 10} KiB of shared memory" + ("" if fits else ", 32 needed"))


def _fp16(device: DeviceSnapshot) -> Capability:
    missing = [
        word
        for word, present in (("fp16 arithmetic", device.float16), ("16-bit storage buffers", device.storage_16bit))
        if not present
    ]
    detail = f"no {' and no '.join(missing)}" if missing else "fp16 arithmetic and 16-bit storage buffers"
    return Capability("fp16 storage", not missing, detail)


def _subgroup_size(device: DeviceSnapshot) -> Capability:
    have = device.subgroup
    sizes = str(have.size) if have.minimum == have.maximum else f"{have.minimum} to {have.maximum}"
    controlled = have.size_control and have.full_subgroups
    return Capability("required subgroup size", controlled, sizes + ("" if controlled else ", no control over it"))


def _matrices(device: DeviceSnapshot) -> Capability:
    shapes = [describe_matrix(shape) for shape in device.matrices]
    return Capability("cooperative matrices", bool(shapes), "; ".join(shapes) or "none offered by the driver")


def _host(device: DeviceSnapshot) -> tuple[Capability, Capability]:
    alignment, bits = device.host_import_alignment, device.timestamp_bits
    imported = Capability(
        "imported host memory",
        alignment is not None,
        "mapped memory is used instead" if alignment is None else f"aligned to {alignment} bytes",
    )
    period = f"{bits} bits, {device.timestamp_period:g} ns" if bits else "none on the compute queue"
    return imported, Capability("GPU timestamps", bits > 0, period)
