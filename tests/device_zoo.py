"""Made-up devices with the facts of real ones, and made-up plans, for tests that need no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from convtrain.gpu.snapshot import DeviceSnapshot, Heap, Limits, MemoryType, Subgroup
from convtrain.graph.types import (
    Access,
    Buffer,
    Kind,
    MatrixShape,
    Pass,
    Plan,
    Port,
    Requirements,
    Roles,
    Uniform,
    UniformField,
    Variant,
)

R, W, RW = Access.READ, Access.WRITE, Access.READ_WRITE
GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10
ALL_OPERATIONS = ("basic", "vote", "arithmetic", "ballot", "shuffle", "shuffle-relative", "clustered", "quad")


def matrix(m: int, n: int, k: int, result: str = "f32") -> MatrixShape:
    return MatrixShape(m, n, k, "f16", "f16", result, result)


LAVAPIPE = DeviceSnapshot(
    index=0,
    name="llvmpipe (LLVM 15.0.6, 256 bits)",
    kind="cpu",
    vendor_id=0x10005,
    device_id=0,
    driver_name="llvmpipe",
    driver_info="Mesa 22.3.6",
    driver_version=1,
    api_version=(1, 3, 230),
    pipeline_cache_uuid="76616c2d257300000000000000000000",
    queue_family=0,
    subgroup=Subgroup(8, 8, 8, True, True, 32, ALL_OPERATIONS[:6]),
    limits=Limits(
        shared_bytes=32 * KIB,
        workgroup_invocations=1024,
        workgroup_size=(1024, 1024, 1024),
        workgroup_count=(65535, 65535, 65535),
        storage_range=128 * MIB,
        uniform_range=64 * KIB,
        buffer_size=4 * GIB - 1,
        allocation_size=2 * GIB,
        allocation_count=4294967295,
        storage_buffers=32,
        storage_alignment=16,
        uniform_alignment=16,
        texel_elements=1 << 27,
        texel_alignment=16,
    ),
    heaps=(Heap(2 * GIB, True),),
    memory_types=(MemoryType(0, True, True, True, True),),
    host_import_alignment=4096,
    float16=True,
    storage_16bit=True,
    memory_model=True,
    memory_model_device_scope=True,
    int16=True,
    int64=True,
    matrices=(),
    timestamp_bits=64,
    timestamp_period=1.0,
)

SWIFTSHADER = replace(
    LAVAPIPE,
    name="SwiftShader Device (Subzero)",
    vendor_id=0x1AE0,
    device_id=0xC0DE,
    driver_name="SwiftShader driver",
    subgroup=Subgroup(4, 4, 4, True, True, 64, ALL_OPERATIONS[:6]),
    limits=replace(
        LAVAPIPE.limits,
        workgroup_invocations=256,
        workgroup_size=(256, 256, 64),
        storage_range=GIB,
        buffer_size=GIB,
        allocation_size=GIB,
        storage_alignment=256,
        uniform_alignment=256,
        texel_elements=1 << 16,
        texel_alignment=256,
    ),
    host_import_alignment=None,
    float16=False,
    storage_16bit=False,
    int16=False,
)

H200 = replace(
    LAVAPIPE,
    name="NVIDIA H200",
    kind="discrete",
    vendor_id=0x10DE,
    driver_name="NVIDIA",
    subgroup=Subgroup(32, 32, 32, True, True, 4194304, ALL_OPERATIONS),
    limits=replace(
        LAVAPIPE.limits,
        shared_bytes=48 * KIB,
        workgroup_size=(1024, 1024, 64),
        workgroup_count=(2147483647, 65535, 65535),
        storage_range=4 * GIB - 1,
        buffer_size=1 << 40,
        allocation_size=4292870144,
        storage_buffers=1048576,
        uniform_alignment=64,
    ),
    heaps=(Heap(139 * GIB, True), Heap(128 * GIB, False), Heap(246 * MIB, True)),
    memory_types=(
        MemoryType(1, False, False, False, False),
        MemoryType(0, True, False, False, False),
        MemoryType(1, False, True, True, False),
        MemoryType(1, False, True, True, True),
        MemoryType(2, True, True, True, False),
    ),
    matrices=tuple(matrix(16, n, k, result) for n, k in ((16, 16), (8, 16), (8, 8)) for result in ("f16", "f32")),
)

RADV = replace(
    H200,
    name="AMD Radeon RX 7900 XTX (RADV NAVI31)",
    vendor_id=0x1002,
    driver_name="radv",
    subgroup=Subgroup(64, 32, 64, True, True, 4294967295, ALL_OPERATIONS),
    limits=replace(H200.limits, shared_bytes=64 * KIB, workgroup_size=(1024, 1024, 1024)),
    heaps=(Heap(24 * GIB, True), Heap(32 * GIB, False), Heap(256 * MIB, True)),
    matrices=(matrix(16, 16, 16), matrix(16, 16, 16, "f16")),
)

INTEL = replace(
    RADV,
    name="Intel(R) Arc(tm) A770",
    kind="integrated",
    vendor_id=0x8086,
    driver_name="Intel open-source Mesa driver",
    subgroup=Subgroup(32, 8, 32, True, True, 64, ALL_OPERATIONS),
    heaps=(Heap(16 * GIB, True),),
    memory_types=(MemoryType(0, True, False, False, False), MemoryType(0, True, True, True, True)),
    matrices=(matrix(8, 16, 16),),
)

PLAIN = replace(
    INTEL,
    name="A plain device",
    kind="other",
    api_version=(1, 1, 0),
    subgroup=Subgroup(32, 32, 32, False, False, 0, ("basic",)),
    limits=replace(LAVAPIPE.limits, storage_buffers=8, workgroup_invocations=128, buffer_size=GIB),
    host_import_alignment=None,
    float16=False,
    storage_16bit=False,
    memory_model=False,
    memory_model_device_scope=False,
    int16=False,
    int64=False,
    matrices=(),
    timestamp_bits=0,
)
"""32 KiB of shared memory, no fp16, nothing optional, no timestamps."""

ZOO = (LAVAPIPE, SWIFTSHADER, H200, RADV, INTEL, PLAIN)

SCALAR = Variant("scalar", "0" * 64, "main", (64, 1, 1), (100, 1, 1))


def coopmat(m: int, n: int, k: int, subgroup: int | None, shared: int = 0, width: int = 128) -> Variant:
    """A cooperative-matrix variant as the cook phase would declare it."""
    needs = Requirements(
        matrix=matrix(m, n, k),
        subgroup_size=subgroup,
        subgroup_ops=("basic",),
        shared_bytes=shared,
        storage_16bit=True,
        float16=True,
        memory_model=True,
        capabilities=("Shader", "Float16", "StorageBuffer16BitAccess", "VulkanMemoryModel", "CooperativeMatrixKHR"),
    )
    name = f"coopmat{m}x{n}x{k}" + ("" if subgroup is None else f"-{subgroup}")
    return replace(SCALAR, name=name, local=(width, 1, 1), requires=needs)


FP16 = replace(SCALAR, name="fp16", requires=Requirements(float16=True, storage_16bit=True), storage="f16")
GEMM_VARIANTS = (
    coopmat(16, 16, 16, 32, shared=40 * KIB),
    coopmat(16, 8, 16, 32),
    coopmat(16, 16, 16, 64),
    coopmat(8, 16, 16, 16),
    SCALAR,
)
"""In order of preference, as a recipe may list them for one matrix product."""


def make_plan(
    variants: Sequence[Variant] = (SCALAR,),
    *,
    elements: int = 1000,
    dtype: str = "f32",
    storages: tuple[str, ...] = ("f32",),
    name: str = "reference",
    flops: int = 0,
    nbytes: int = 1000,
    shape: tuple[int, ...] = (),
) -> Plan:
    """Two passes: ``first`` (always scalar) writes buffer 0-1, ``second`` (these variants) reads it, writes 1-1."""
    uniform = Uniform(32, (UniformField("lr", 0, "f32"), UniformField("epoch", 16, "u32")), label="state")
    first = Pass(
        0,
        "first",
        "forward",
        True,
        False,
        (Port(0, "x", Kind.DATA, R, "0-0"), Port(1, "y", Kind.SIZE, W, "0-1")),
        (replace(SCALAR, storage=None),),
        uniform,
    )
    second = Pass(
        1,
        "second",
        "update",
        False,
        False,
        (Port(0, "y", Kind.SHARE, R, "0-1"), Port(1, "z", Kind.SIZE, RW, "1-1")),
        tuple(variants),
        None,
        nbytes,
        flops,
    )
    buffers = (
        Buffer("0-0", "WBuf", 100, seed="1" * 64, dump=True),
        Buffer("0-1", "Out", elements, dtype, shape),
        Buffer("1-1", "loss", 5, host=True),
    )
    roles = Roles("0-0", "0-0", "0-0", "0-1", "1-1", ("loss", "mse"), "state", ())
    return Plan(name, storages, (first, second), buffers, roles)
