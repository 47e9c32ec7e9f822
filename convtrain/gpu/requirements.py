"""Why a device cannot run a variant of a pass: plain reasons, an empty tuple when it can."""

from __future__ import annotations

from convtrain.gpu.snapshot import DeviceSnapshot
from convtrain.graph.types import MatrixShape, Pass, Variant

_CAPABILITIES: dict[str, str | None] = {
    # SPIR-V capability -> the snapshot's flag that it needs; None where every Vulkan 1.1 device has it.
    "Shader": None,
    "Matrix": None,
    "SampledBuffer": None,
    "Float16": "float16",
    "Int16": "int16",
    "Int64": "int64",
    "StorageBuffer16BitAccess": "storage_16bit",
    "UniformAndStorageBuffer16BitAccess": "storage_16bit",
    "VulkanMemoryModel": "memory_model",
    "VulkanMemoryModelDeviceScope": "memory_model_device_scope",
}
_SUBGROUP_CAPABILITIES = {
    "GroupNonUniform": "basic",
    "GroupNonUniformVote": "vote",
    "GroupNonUniformArithmetic": "arithmetic",
    "GroupNonUniformBallot": "ballot",
    "GroupNonUniformShuffle": "shuffle",
    "GroupNonUniformShuffleRelative": "shuffle-relative",
    "GroupNonUniformClustered": "clustered",
    "GroupNonUniformQuad": "quad",
}
_FLAG_WORDS = {
    "float16": "fp16 arithmetic",
    "storage_16bit": "16-bit storage buffers",
    "memory_model": "Vulkan memory model",
    "memory_model_device_scope": "Vulkan memory model at device scope",
    "int16": "16-bit integers",
    "int64": "64-bit integers",
}


def describe_matrix(shape: MatrixShape) -> str:
    """``16x16x16 f16,f16->f32`` and so on: what a person reads."""
    return f"{shape.m}x{shape.n}x{shape.k} {shape.a},{shape.b}+{shape.c}->{shape.result} ({shape.scope})"


def needed_flags(variant: Variant) -> set[str]:
    """The snapshot's feature flags that the variant needs, as field names of ``DeviceSnapshot``."""
    needs = variant.requires
    flags = {name for name in ("float16", "storage_16bit", "memory_model") if getattr(needs, name)}
    for capability in needs.capabilities:
        flag = _CAPABILITIES.get(capability)
        if flag is not None:
            flags.add(flag)
    if variant.storage == "f16":
        flags.add("storage_16bit")
    return flags


def _subgroup_reasons(device: DeviceSnapshot, variant: Variant) -> list[str]:
    needs, have = variant.requires, device.subgroup
    wanted = set(needs.subgroup_ops)
    wanted |= {_SUBGROUP_CAPABILITIES[name] for name in needs.capabilities if name in _SUBGROUP_CAPABILITIES}
    reasons = [f"no subgroup operation '{name}'" for name in sorted(wanted - set(have.operations))]
    size = needs.subgroup_size
    if size is None:
        return reasons
    if not have.minimum <= size <= have.maximum:
        span = str(have.size) if have.minimum == have.maximum else f"{have.minimum} to {have.maximum}"
        return [*reasons, f"subgroup size {size} (the device has {span})"]
    if not (have.size_control and have.full_subgroups) and have.minimum != have.maximum:
        return [*reasons, f"no control over the subgroup size, {size} is not certain"]
    if variant.local[0] % size:
        reasons.append(f"a workgroup {variant.local[0]} wide does not fill subgroups of {size}")
    invocations = variant.local[0] * variant.local[1] * variant.local[2]
    if have.size_control and invocations > size * have.max_per_workgroup:
        reasons.append(f"{invocations // size} subgroups in a workgroup (at most {have.max_per_workgroup})")
    return reasons


def _limit_reasons(device: DeviceSnapshot, item: Pass, variant: Variant) -> list[str]:
    limits, reasons = device.limits, []
    if variant.requires.shared_bytes > limits.shared_bytes:
        reasons.append(f"{variant.requires.shared_bytes} bytes of shared memory (at most {limits.shared_bytes})")
    invocations = variant.local[0] * variant.local[1] * variant.local[2]
    if invocations > limits.workgroup_invocations:
        reasons.append(f"{invocations} invocations in a workgroup (at most {limits.workgroup_invocations})")
    for axis, size, most in zip("xyz", variant.local, limits.workgroup_size, strict=True):
        if size > most:
            reasons.append(f"a workgroup of {size} along {axis} (at most {most})")
    if len(item.ports) > limits.storage_buffers:
        reasons.append(f"{len(item.ports)} storage buffers (at most {limits.storage_buffers})")
    if item.uniform is not None and item.uniform.size > limits.uniform_range:
        reasons.append(f"a uniform block of {item.uniform.size} bytes (at most {limits.uniform_range})")
    return reasons


def _size_reasons(device: DeviceSnapshot, variant: Variant) -> list[str]:
    limits, reasons = device.limits, []
    for axis, count, most in zip("xyz", variant.groups, limits.workgroup_count, strict=True):
        if count > most:
            reasons.append(f"{count} workgroups along {axis} (at most {most})")
    if variant.requires.texels > limits.texel_elements:
        reasons.append(f"a view of {variant.requires.texels} texels (at most {limits.texel_elements})")
    return reasons


def reasons_against(device: DeviceSnapshot, item: Pass, variant: Variant, *, any_size: bool = False) -> tuple[str, ...]:
    """Everything that keeps ``device`` from running ``variant`` of pass ``item``; () when it can.

    With ``any_size`` only what no smaller image would settle.
    """
    reasons = [f"no {_FLAG_WORDS[flag]}" for flag in sorted(needed_flags(variant)) if not getattr(device, flag)]
    matrix = variant.requires.matrix
    if matrix is not None and matrix not in device.matrices:
        reasons.append(f"no cooperative matrix {describe_matrix(matrix)}")
    known = {*_CAPABILITIES, *_SUBGROUP_CAPABILITIES, "CooperativeMatrixKHR"}
    unknown = [name for name in variant.requires.capabilities if name not in known]
    reasons += [f"SPIR-V capability {name}, which is never enabled" for name in unknown]
    reasons += _subgroup_reasons(device, variant)
    reasons += _limit_reasons(device, item, variant)
    if not any_size:
        reasons += _size_reasons(device, variant)
    return tuple(reasons)
