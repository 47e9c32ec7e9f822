"""The ConvSIREN recipe through the cook phase: every kernel compiles, is valid, and asks for little."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest

from convtrain.graph.types import Plan
from cook.cache import SpirvCache
from cook.model import ModelConfig
from cook.pack import Packed, pack
from cook.registry import CONVSIREN, find_recipe
from cook.sources import slang_root

SMALL = ModelConfig(height=32, width=24, nf=16, den=0.01)
SHAPES = {
    "small": SMALL,
    "one pixel": ModelConfig(height=1, width=1, nf=8, layers=1, ks=1, kn=1, halo=0),
    "five wide": ModelConfig(height=13, width=5, nf=24, layers=3, ks=3, halo=5),
    "seed": ModelConfig(),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> SpirvCache:
    return SpirvCache(tmp_path_factory.mktemp("spirv"))


def cooked(model: ModelConfig, cache: SpirvCache) -> Packed:
    return pack(
        find_recipe(CONVSIREN)(model),
        packs={"model": model.pack()},
        roots=[slang_root()],
        cache=cache,
        seeds={"weights": "w" * 64, "target": "t" * 64},
    )


@pytest.mark.parametrize("model", SHAPES.values(), ids=SHAPES)
def test_every_shape_packs_without_a_warning(model: ModelConfig, cache: SpirvCache) -> None:
    result = cooked(model, cache)
    assert result.warnings == ()
    reference = result.plans["reference"]
    assert len(reference.passes) == 29 + 13 * model.layers
    assert reference.buffer("WBuf").elements == reference.buffer("GW").elements == model.weights


def test_the_seed_plan_is_the_table_of_81_passes(cache: SpirvCache) -> None:
    names = [item.name for item in cooked(ModelConfig(), cache).plans["reference"].passes]
    forward = ["dw", "pack_mix", "gemm_mix", "mix_unpack"] * 4
    backward = [
        *("bwd_sin_dm", "pack_wmix", "gemm_mixx", "unpack_dm", "gemm_mixw"),
        *("reduce_mixw", "bwd_dw_x", "bwd_dw_k", "bwd_kern"),
    ] * 4
    muon = ["muon_prep", *["muon_gram", "muon_poly", "muon_upd"] * 5, "muon_apply"]
    assert names == [
        *("kern", "stem_train", *forward, "head", "lossgrad", "ssim_fwd", "ssim_add", "bwd_head_x", "bwd_head_w"),
        *(*backward, "bwd_stem", "upd", *muon, "wavg_acc", "wavg_apply"),
    ]


def scalar_variants(plan: Plan) -> list[tuple[str, tuple[str, ...], int, int]]:
    rows = []
    for item in plan.passes:
        variant = item.variants[-1]
        x, y, z = variant.local
        rows.append((item.name, variant.requires.capabilities, variant.requires.shared_bytes, x * y * z))
    return rows


@pytest.mark.parametrize("model", [SMALL, ModelConfig()], ids=["small", "seed"])
def test_the_last_variant_of_each_pass_runs_anywhere(model: ModelConfig, cache: SpirvCache) -> None:
    """Vulkan 1.1 without features, 32 KiB of shared memory, and the 128 invocations that every device has."""
    for name, capabilities, shared, invocations in scalar_variants(cooked(model, cache).plans["reference"]):
        assert set(capabilities) <= {"Shader", "Matrix"}, name
        assert shared <= 32 * 1024, name
        assert invocations <= 128, name


def test_the_kernels_are_valid_spirv(cache: SpirvCache, tmp_path: Path) -> None:
    validator = shutil.which("spirv-val")
    if validator is None:
        pytest.skip("spirv-val is not installed")
    result = cooked(SMALL, cache)
    plain = {
        variant.spirv
        for plan in result.plans.values()
        for item in plan.passes
        for variant in item.variants
        if variant.requires.matrix is None  # Debian 12's validator does not know cooperative matrices
    }
    for name in sorted(plain):
        path = tmp_path / f"{name}.spv"
        path.write_bytes(result.blobs[name])
        done = subprocess.run([validator, "--target-env", "vulkan1.1", str(path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def changed_kernels(model: ModelConfig, cache: SpirvCache, **changes: float) -> int:
    cooked(model, cache)
    return cooked(dataclasses.replace(model, **changes), cache).compiled  # type: ignore[arg-type]


def test_a_changed_constant_recompiles_only_the_passes_that_use_it(cache: SpirvCache) -> None:
    assert changed_kernels(SMALL, cache, seed=4) == 0
    assert changed_kernels(SMALL, cache, lr=0.5, patience=3) == 1  # where the device keeps the schedule
    total = cooked(SMALL, cache).kernels
    for name, value in (("lambda_c", 0.5), ("lambda_s", 0.5), ("den", 0.5), ("muon_scale", 2.0)):
        assert 1 <= changed_kernels(SMALL, cache, **{name: value}) <= total // 8, name
