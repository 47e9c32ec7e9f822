"""The pure planner on made-up devices: variants, reasons, limits, memory, sequences, the choice of a plan."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from convtrain.errors import InputError
from convtrain.gpu import plan as planner
from convtrain.gpu.placement import BLOCK_BYTES, GRANULE, block_limit, device_types, host_types, pack
from convtrain.gpu.plan import PLAN_PREFERENCE, choose_plan, plan_execution, preferred, sequence, uniform_key
from convtrain.gpu.requirements import reasons_against
from convtrain.gpu.snapshot import DeviceSnapshot, Heap
from convtrain.gpu.switches import NO_SWITCHES, Switches
from convtrain.graph.types import Plan, Requirements, Variant
from device_zoo import (
    FP16,
    GEMM_VARIANTS,
    GIB,
    H200,
    INTEL,
    KIB,
    LAVAPIPE,
    MIB,
    PLAIN,
    RADV,
    SCALAR,
    SWIFTSHADER,
    ZOO,
    coopmat,
    make_plan,
)


def chosen(device: DeviceSnapshot, variants: tuple[Variant, ...], switches: Switches = NO_SWITCHES) -> str:
    return plan_execution(device, make_plan(variants), switches).choices[1].variant.name


def reasons(device: DeviceSnapshot, variant: Variant) -> str:
    return "; ".join(reasons_against(device, make_plan().passes[1], variant))


def needing(**needs: object) -> Variant:
    return replace(SCALAR, requires=Requirements(**needs))  # type: ignore[arg-type]


# Variants


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (H200, "coopmat16x16x16-32"),
        (RADV, "coopmat16x16x16-32"),
        (INTEL, "coopmat8x16x16-16"),
        (LAVAPIPE, "scalar"),
        (SWIFTSHADER, "scalar"),
        (PLAIN, "scalar"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_first_variant_that_runs_is_taken(device: DeviceSnapshot, expected: str) -> None:
    assert chosen(device, GEMM_VARIANTS) == expected


def test_wave64_is_taken_where_the_recipe_prefers_it() -> None:
    variants = (coopmat(16, 16, 16, 64), *GEMM_VARIANTS)
    assert chosen(RADV, variants) == "coopmat16x16x16-64"
    assert chosen(H200, variants) == "coopmat16x16x16-32"


def test_less_shared_memory_means_the_next_variant() -> None:
    small = replace(H200, limits=replace(H200.limits, shared_bytes=32 * KIB))
    assert chosen(small, GEMM_VARIANTS) == "coopmat16x8x16-32"


@pytest.mark.parametrize("switch", ["no_coopmat", "no_fp16"])
def test_kill_switches_lead_to_scalar(switch: str) -> None:
    assert chosen(H200, GEMM_VARIANTS, Switches(**{switch: True})) == "scalar"


def test_without_size_control_only_a_fixed_size_is_certain() -> None:
    assert chosen(H200, GEMM_VARIANTS, Switches(no_subgroup_size=True)) == "coopmat16x16x16-32"
    assert chosen(RADV, GEMM_VARIANTS, Switches(no_subgroup_size=True)) == "scalar"


def test_every_rejected_variant_keeps_its_reasons() -> None:
    rejected = plan_execution(INTEL, make_plan(GEMM_VARIANTS)).choices[1].rejected
    assert [item.name for item in rejected] == [variant.name for variant in GEMM_VARIANTS[:3]]
    assert all("no cooperative matrix 16x" in " ".join(item.reasons) for item in rejected)


def test_nothing_better_is_reported_where_the_first_runs() -> None:
    assert plan_execution(H200, make_plan(GEMM_VARIANTS)).choices[1].rejected == ()


@pytest.mark.parametrize(
    ("device", "variant", "expected"),
    [
        (LAVAPIPE, coopmat(16, 16, 16, 8), "no cooperative matrix 16x16x16 f16,f16+f32->f32 (subgroup)"),
        (LAVAPIPE, needing(subgroup_size=32), "subgroup size 32 (the device has 8)"),
        (RADV, needing(subgroup_size=16), "subgroup size 16 (the device has 32 to 64)"),
        (LAVAPIPE, needing(shared_bytes=40000), "40000 bytes of shared memory (at most 32768)"),
        (SWIFTSHADER, needing(texels=70000), "a view of 70000 texels (at most 65536)"),
        (PLAIN, needing(float16=True), "no fp16 arithmetic"),
        (PLAIN, needing(storage_16bit=True), "no 16-bit storage buffers"),
        (PLAIN, needing(memory_model=True), "no Vulkan memory model"),
        (PLAIN, needing(subgroup_ops=("shuffle", "arithmetic")), "no subgroup operation 'arithmetic'"),
        (PLAIN, needing(capabilities=("GroupNonUniformBallot",)), "no subgroup operation 'ballot'"),
        (PLAIN, needing(capabilities=("Int64",)), "no 64-bit integers"),
        (H200, needing(capabilities=("RayQueryKHR",)), "SPIR-V capability RayQueryKHR"),
        (H200, needing(subgroup_size=32, subgroup_ops=("basic",)), ""),
        (PLAIN, replace(SCALAR, local=(256, 1, 1)), "256 invocations in a workgroup (at most 128)"),
        (SWIFTSHADER, replace(SCALAR, local=(1, 1, 128)), "a workgroup of 128 along z (at most 64)"),
        (LAVAPIPE, replace(SCALAR, groups=(70000, 1, 1)), "70000 workgroups along x (at most 65535)"),
        (H200, replace(SCALAR, groups=(70000, 1, 1)), ""),
        (LAVAPIPE, replace(needing(subgroup_size=8), local=(12, 1, 1)), "12 wide does not fill subgroups of 8"),
        (LAVAPIPE, replace(needing(subgroup_size=8), local=(512, 1, 1)), "64 subgroups in a workgroup (at most 32)"),
        (PLAIN, replace(SCALAR, storage="f16"), "no 16-bit storage buffers"),
    ],
    ids=lambda value: getattr(value, "name", "") or str(value)[:30],
)
def test_reasons(device: DeviceSnapshot, variant: Variant, expected: str) -> None:
    found = reasons(device, variant)
    assert expected in found if expected else found == ""


def test_too_many_ports_are_a_reason() -> None:
    item = make_plan().passes[1]
    many = replace(item, ports=tuple(replace(item.ports[0], number=n) for n in range(9)))
    assert reasons_against(PLAIN, many, SCALAR) == ("9 storage buffers (at most 8)",)


def test_a_large_uniform_block_is_a_reason() -> None:
    item = make_plan().passes[0]
    assert item.uniform is not None
    large = replace(item, uniform=replace(item.uniform, size=1 << 20))
    assert "uniform block of 1048576 bytes" in " ".join(reasons_against(LAVAPIPE, large, SCALAR))


def test_a_pass_without_a_runnable_variant_is_named() -> None:
    with pytest.raises(InputError, match=r"device 0 \(A plain device\) cannot run pass 1 second .*no fp16 arithmetic"):
        plan_execution(PLAIN, make_plan((needing(float16=True),)))


def test_features_are_those_of_the_chosen_variants() -> None:
    assert plan_execution(H200, make_plan()).features == frozenset()
    wanted = {"float16", "storage_16bit", "memory_model", "subgroup_size", "matrices"}
    assert plan_execution(H200, make_plan(GEMM_VARIANTS)).features == wanted
    assert plan_execution(LAVAPIPE, make_plan(GEMM_VARIANTS)).features == frozenset()


def test_variant_classes_count_the_passes() -> None:
    assert plan_execution(H200, make_plan(GEMM_VARIANTS)).variant_classes() == {"scalar": 1, "coopmat16x16x16-32": 1}


# Storage


def test_storage_follows_the_plans_preference() -> None:
    plan = make_plan((FP16, SCALAR), dtype="store", storages=("f16", "f32"))
    half = plan_execution(H200, plan)
    assert (half.storage, half.choices[1].variant.name) == ("f16", "fp16")
    assert half.nbytes(plan.buffer("Out")) == 2000
    full = plan_execution(SWIFTSHADER, plan)
    assert (full.storage, full.choices[1].variant.name) == ("f32", "scalar")
    assert full.nbytes(plan.buffer("Out")) == 4000
    assert "works on f16 storage, not f32" in full.choices[1].rejected[0].reasons


def test_the_fp16_switch_reaches_the_storage() -> None:
    plan = make_plan((FP16, SCALAR), dtype="store", storages=("f16", "f32"))
    assert plan_execution(H200, plan, Switches(no_fp16=True)).storage == "f32"


def test_half_storage_that_fits_is_taken_when_full_does_not() -> None:
    plan = make_plan((FP16, SCALAR), dtype="store", storages=("f32", "f16"), elements=50 * MIB)
    assert plan_execution(LAVAPIPE, plan).storage == "f16"


# Limits


def image_plan(height: int, width: int, features: int = 32) -> Plan:
    return make_plan(elements=height * width * features, shape=(height, width, 3))


def test_a_binding_beyond_the_range_is_refused_with_numbers_and_advice() -> None:
    with pytest.raises(InputError) as caught:
        plan_execution(LAVAPIPE, image_plan(2048, 2048))
    said = str(caught.value)
    assert "536,870,912 bytes" in said
    assert "134,217,728 bytes" in said
    assert "maxStorageBufferRange" in said
    assert "--size 972x972" in said
    assert "25 % of the present one" in said


def test_the_advised_size_fits() -> None:
    with pytest.raises(InputError) as caught:
        plan_execution(LAVAPIPE, image_plan(3000, 1111))
    match = re.search(r"--size (\d+)x(\d+)", str(caught.value))
    assert match is not None
    width, height = map(int, match.groups())
    assert (width < height) is True
    plan_execution(LAVAPIPE, image_plan(height, width))


def test_buffer_size_and_allocation_size_are_checked() -> None:
    plan = image_plan(2048, 2048)
    ranged = replace(LAVAPIPE, limits=replace(LAVAPIPE.limits, storage_range=4 * GIB - 1))
    small_buffers = replace(ranged, limits=replace(ranged.limits, buffer_size=256 * MIB))
    with pytest.raises(InputError, match="maxBufferSize"):
        plan_execution(small_buffers, plan)
    small_allocations = replace(ranged, limits=replace(ranged.limits, allocation_size=256 * MIB))
    with pytest.raises(InputError, match="maxMemoryAllocationSize"):
        plan_execution(small_allocations, plan)
    assert plan_execution(ranged, plan).device_memory.total > 512 * MIB


def test_the_sum_of_all_buffers_is_checked_against_the_heap() -> None:
    little = replace(LAVAPIPE, heaps=(Heap(64 * MIB, True),))
    with pytest.raises(InputError, match=r"needs 100,\d{3},\d{3} bytes of device memory.* has 67,108,864 bytes"):
        plan_execution(little, make_plan(elements=25_000_000))


def test_the_number_of_allocations_is_checked() -> None:
    stingy = replace(H200, limits=replace(H200.limits, allocation_count=1, allocation_size=5000))
    with pytest.raises(InputError, match="memory allocations"):
        plan_execution(stingy, make_plan(elements=1250))


def test_the_largest_offender_is_named_first() -> None:
    plan = make_plan(elements=40 * MIB)
    with pytest.raises(InputError, match="for buffer Out"):
        plan_execution(LAVAPIPE, plan)


def too_large(pixels: int, name: str, *variants: Variant) -> Plan:
    return make_plan(variants or (SCALAR,), name=name, elements=pixels * 32, shape=(1000, pixels // 1000, 3))


@pytest.mark.parametrize("device", [LAVAPIPE, H200], ids=lambda device: device.kind)
def test_what_would_fit_is_that_of_the_plan_that_fits_most(device: DeviceSnapshot) -> None:
    tight = replace(device, limits=replace(device.limits, storage_range=100_000_000))
    sizes = {"fused": 1_000_000, "reference": 2_000_000}
    every = {name: too_large(pixels, name) for name, pixels in sizes.items()}
    with pytest.raises(InputError, match=r"Plan fused needs .* an nf of at most 78 % of the present one"):
        choose_plan(tight, every)
    with pytest.raises(InputError, match=r"Plan reference needs .* at most 39 %"):
        choose_plan(tight, every, wanted="reference")


def test_no_size_is_advised_for_a_plan_that_lacks_features() -> None:
    every = {
        "fused-f16": too_large(2_000_000, "fused-f16", needing(float16=True)),
        "reference": too_large(4_000_000, "reference"),
    }
    tight = replace(PLAIN, limits=replace(PLAIN.limits, storage_range=100_000_000))
    with pytest.raises(InputError, match=r"Plan reference needs .* at most 19 %"):
        choose_plan(tight, every)
    with pytest.raises(InputError, match="no fp16 arithmetic"):
        choose_plan(tight, every, wanted="fused-f16")


def test_the_storage_that_fits_most_is_told() -> None:
    plan = make_plan((FP16, SCALAR), dtype="store", storages=("f16", "f32"), elements=100 * MIB)
    with pytest.raises(InputError, match="needs 209,715,200 bytes"):
        plan_execution(LAVAPIPE, plan)


# Memory


@pytest.mark.parametrize("device", ZOO, ids=lambda device: device.name)
def test_slots_are_aligned_apart_and_inside(device: DeviceSnapshot) -> None:
    execution = plan_execution(device, make_plan())
    for layout in (execution.device_memory, execution.host_memory):
        ends = [0] * len(layout.blocks)
        for slot in layout.slots:
            assert slot.offset % max(GRANULE, device.limits.storage_alignment) == 0
            assert slot.offset >= ends[slot.block]
            ends[slot.block] = slot.offset + slot.size
        assert all(end <= block <= block_limit(device) for end, block in zip(ends, layout.blocks, strict=True))


def test_host_buffers_and_uniforms_live_in_host_memory() -> None:
    execution = plan_execution(LAVAPIPE, make_plan())
    assert [slot.key for slot in execution.device_memory.slots] == ["0-0", "0-1"]
    assert [(slot.key, slot.size) for slot in execution.host_memory.slots] == [("1-1", 20), (uniform_key(0), 32)]


def test_packing_opens_a_block_when_the_last_is_full() -> None:
    layout = pack([("a", 700), ("b", 300), ("c", 200), ("d", 5000)], alignment=16, largest=1536)
    assert [(slot.key, slot.block, slot.offset) for slot in layout.slots] == [
        ("a", 0, 0),
        ("b", 0, 768),
        ("c", 0, 1280),
        ("d", 1, 0),
    ]
    assert layout.blocks == (1536, 5120)
    assert layout.total == 6656


def test_nothing_to_pack_needs_no_block() -> None:
    assert pack([], alignment=16, largest=1000).blocks == ()


def test_many_buffers_need_few_blocks() -> None:
    layout = pack([(str(n), 75 * MIB) for n in range(40)], alignment=16, largest=BLOCK_BYTES)
    assert len(layout.blocks) == 4


def test_blocks_respect_the_devices_limits() -> None:
    assert block_limit(H200) == BLOCK_BYTES
    assert block_limit(replace(H200, limits=replace(H200.limits, allocation_size=MIB))) == MIB


def test_memory_types_prefer_the_large_own_heap_and_cached_host_memory() -> None:
    assert device_types(H200)[0] == 1
    assert host_types(H200) == [3, 2, 4]
    assert host_types(H200, allowed=0b10100) == [2, 4]
    assert device_types(H200, allowed=0b10000) == [4]
    assert device_types(INTEL)[0] == 0
    assert device_types(LAVAPIPE) == host_types(LAVAPIPE) == [0]


# Sequences


def test_a_sequence_has_the_active_passes_in_order() -> None:
    execution = plan_execution(H200, make_plan())
    assert sequence(execution, (1,)).active == (1,)
    both = sequence(execution, (0, 1))
    assert [step.index for chunk in both.chunks for step in chunk.steps] == [0, 1]
    assert [bool(step.hazards) for step in both.chunks[0].steps] == [False, True]
    assert sequence(execution, ()).chunks == ()


@pytest.mark.parametrize("active", [(2,), (1, 0), (0, 0), (-1,)])
def test_a_sequence_of_nonsense_is_refused(active: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="not an ascending list"):
        sequence(plan_execution(H200, make_plan()), active)


@pytest.mark.parametrize("device", ZOO, ids=lambda device: device.name)
@pytest.mark.parametrize("flops", [10**9, 10**11, 10**13])
def test_no_submit_exceeds_the_budget(device: DeviceSnapshot, flops: int) -> None:
    execution = plan_execution(device, make_plan(flops=flops))
    made = sequence(execution, (0, 1))
    largest = max(chunk.seconds for chunk in made.chunks)
    smallest_piece = execution.seconds[1] / SCALAR.groups[0]
    assert largest <= max(execution.pace.budget * (1 + 1e-9), smallest_piece)
    assert made.seconds == pytest.approx(sum(execution.seconds))


def test_split_passes_are_known_before_their_pipelines_are_built() -> None:
    assert plan_execution(H200, make_plan(flops=10**9)).split == frozenset()
    assert plan_execution(H200, make_plan(flops=10**12)).split == {1}


# The choice of a plan


def plans(*names: str, broken: tuple[str, ...] = ()) -> dict[str, Plan]:
    return {name: make_plan((needing(float16=True),) if name in broken else (SCALAR,), name=name) for name in names}


def test_auto_takes_the_plans_in_order_of_preference() -> None:
    execution, rejected = choose_plan(H200, plans("reference", "zeta", "fused-f16", "fused", "alpha"))
    assert (execution.plan.name, rejected) == ("fused-f16", ())
    both = plans("reference", "fused")
    assert {device.kind: choose_plan(device, both)[0].plan.name for device in (H200, LAVAPIPE)} == {
        "discrete": PLAN_PREFERENCE[1],
        "cpu": "fused",
    }
    assert choose_plan(H200, plans("zeta", "alpha"))[0].plan.name == "alpha"


def test_auto_explains_what_it_passed_over() -> None:
    execution, rejected = choose_plan(PLAIN, plans("reference", "fused-f16", broken=("fused-f16",)))
    assert execution.plan.name == "reference"
    assert [item.name for item in rejected] == ["fused-f16"]
    assert "no fp16 arithmetic" in rejected[0].reasons[0]


def test_a_named_plan_is_that_one_or_an_error() -> None:
    both = plans("reference", "fused", broken=("fused",))
    assert choose_plan(H200, both, wanted="reference")[0].plan.name == "reference"
    with pytest.raises(InputError, match="no fp16"):
        choose_plan(PLAIN, both, wanted="fused")
    with pytest.raises(InputError, match=r"no plan called 'quick'.*fused, reference"):
        choose_plan(H200, both, wanted="quick")


def test_a_name_means_its_editions_too() -> None:
    editions = plans("reference", "fused", "fused-f16", "fusedly", broken=("fused-f16",))
    assert preferred(H200, editions, "fused") == ["fused-f16", "fused"]
    assert choose_plan(H200, editions, wanted="fused")[0].plan.name == "fused-f16"
    execution, rejected = choose_plan(PLAIN, editions, wanted="fused")
    assert (execution.plan.name, [item.name for item in rejected]) == ("fused", ["fused-f16"])
    with pytest.raises(InputError, match="no fp16"):
        choose_plan(PLAIN, editions, wanted="fused-f16")


def test_the_environment_says_what_auto_means() -> None:
    both = plans("reference", "fused")
    assert choose_plan(H200, both, Switches(plan="reference"))[0].plan.name == "reference"
    assert choose_plan(H200, both, Switches(plan="reference"), "fused")[0].plan.name == "fused"
    with pytest.raises(InputError, match=r"no plan called 'nope' \(CONV_PLAN\)"):
        choose_plan(H200, both, Switches(plan="nope"))


def test_a_plan_that_was_left_out_says_why() -> None:
    why = r"Plan fused-f16 is left out of this archive: its kernels are made for nf=128\. This archive has: reference\."
    with pytest.raises(InputError, match=why):
        choose_plan(
            H200, plans("reference"), wanted="fused-f16", left_out={"fused-f16": "its kernels are made for nf=128"}
        )


def test_no_runnable_plan_is_an_error() -> None:
    with pytest.raises(InputError, match="no fp16"):
        choose_plan(PLAIN, plans("reference", broken=("reference",)))
    with pytest.raises(InputError, match="no plan"):
        choose_plan(PLAIN, {})


def test_planning_imports_no_vulkan() -> None:
    folder = Path(planner.__file__).parent
    for source in folder.glob("*.py"):
        imports = [line for line in source.read_text().splitlines() if line.startswith(("import ", "from "))]
        assert not [line for line in imports if "vulkan" in line or "gpu.live" in line], source
