"""Plan `reference` on fp16 storage: which devices get it, and on such a device what it computes, twice the same."""

from __future__ import annotations

import pytest

from convtrain.gpu.live.instance import choose_device
from convtrain.gpu.plan import ExecutionPlan, plan_execution
from convtrain.gpu.snapshot import DeviceSnapshot
from convtrain.gpu.switches import NO_SWITCHES, Switches
from convtrain.graph.types import Plan
from cook.cache import SpirvCache
from cook.model import ModelConfig
from cook.pack import pack
from cook.recipes.reference import Reference
from cook.recipes.reference.half import MATRIX, scale, suits
from cook.sources import slang_root
from device_zoo import H200, INTEL, LAVAPIPE, PLAIN, RADV, SWIFTSHADER
from workspace import Workspace, errors_against_scalar, photograph

MODEL = ModelConfig(height=20, width=28, layers=2, halo=8, kn=4)
PRODUCTS = {"gemm_mix", "gemm_mixx", "gemm_mixw", "bwd_dw_k", "muon_gram", "muon_poly", "muon_upd"}
UNCHANGED = {"kern", "head", "lossgrad", "ssim_fwd", "ssim_add", "upd", "muon_apply", "wavg_acc", "wavg_apply"}
SETTINGS = {"nf": 128, "layers": 3, "ks": 7, "kn": 8}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    packed = pack(
        [Reference(MODEL).build()],
        packs={"model": MODEL.pack()},
        roots=[slang_root()],
        cache=SpirvCache(tmp_path_factory.mktemp("spirv")),
        seeds={"weights": "0" * 64, "target": "1" * 64},
    )
    assert packed.warnings == ()
    return packed.plans["reference"]


def variants(execution: ExecutionPlan) -> dict[str, str]:
    return {
        item.name: choice.variant.name for item, choice in zip(execution.plan.passes, execution.choices, strict=True)
    }


@pytest.mark.parametrize("device", [H200, RADV], ids=lambda device: device.name)
def test_devices_with_the_matrix_shape_get_it_whole(plan: Plan, device: DeviceSnapshot) -> None:
    execution = plan_execution(device, plan, NO_SWITCHES)
    assert execution.storage == "f16"
    chosen = variants(execution)
    assert {name for name, variant in chosen.items() if variant == "matrix"} == PRODUCTS
    assert {name for name, variant in chosen.items() if variant == "scalar"} == UNCHANGED


@pytest.mark.parametrize("device", [LAVAPIPE, SWIFTSHADER, INTEL, PLAIN], ids=lambda device: device.name)
def test_other_devices_keep_the_fp32_kernels(plan: Plan, device: DeviceSnapshot) -> None:
    execution = plan_execution(device, plan, NO_SWITCHES)
    assert execution.storage == "f32"
    assert not {"half", "matrix"} & set(variants(execution).values())
    gemm = next(choice for choice in execution.choices if plan.passes[choice.index].name == "gemm_mix")
    assert any("no cooperative matrix 16x16x16" in reason for reason in gemm.rejected[0].reasons)


@pytest.mark.parametrize("switch", ["no_coopmat", "no_fp16"])
def test_a_switch_leaves_pure_scalar_fp32(plan: Plan, switch: str) -> None:
    execution = plan_execution(H200, plan, Switches(**{switch: True}))
    assert execution.storage == "f32"
    assert set(variants(execution).values()) == {"scalar"}


@pytest.mark.parametrize("other", [{"nf": 64}, {"width": 30}, {"ks": 11}, {"kn": 6}])
def test_models_that_the_kernels_do_not_suit_are_fp32_only(other: dict[str, int]) -> None:
    model = ModelConfig(**{"height": 20, "width": 28, "layers": 2, "halo": 12, **other})
    assert not suits(model)
    assert Reference(model).build().storages == ("f32",)


def test_the_scale_is_a_power_of_two_near_the_number_of_colours() -> None:
    assert scale(ModelConfig()) == 2.0**20
    assert scale(MODEL) == 2.0**11


@pytest.fixture
def cooked(workspace: Workspace) -> Workspace:
    if MATRIX.matrix not in choose_device().matrices:
        pytest.skip("no 16x16x16 matrix units on this machine")
    workspace.cook(photograph(72, 44), **SETTINGS)
    workspace.plan = "reference"
    return workspace


@pytest.mark.parametrize("before", [0, 100])
def test_it_agrees_with_scalar_fp32(cooked: Workspace, before: int) -> None:
    if before:
        cooked.run(before)
    errors = errors_against_scalar(cooked)
    assert errors.pop("Out") < 5e-3
    assert max(errors.values()) < 2e-2, errors


def test_interrupted_training_gives_the_same_bytes(cooked: Workspace) -> None:
    twin = cooked.twin()
    cooked.run(30)
    twin.run(11)
    twin.run(19)
    assert cooked.snapshot() == twin.snapshot()
