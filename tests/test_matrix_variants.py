"""The matrix products with subgroup broadcasts against the scalar ones, on a device that prefers the former."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from convtrain.files.container import sha256
from convtrain.gpu.live.engine import Engine
from convtrain.gpu.plan import ExecutionPlan, plan_execution
from convtrain.gpu.snapshot import DeviceSnapshot
from convtrain.gpu.switches import NO_SWITCHES
from convtrain.graph.types import Plan
from cook.cache import SpirvCache
from cook.model import ModelConfig
from cook.pack import pack
from cook.recipes.reference import Reference
from cook.seeds import draw_weights
from cook.sources import slang_root
from oracle.layout import Array
from workspace import photograph, relative_error

pytest_plugins = ("live_device",)

GEMMS = ("gemm_mix", "gemm_mixx", "gemm_mixw")
MODELS = [
    ModelConfig(height=13, width=21, nf=8, layers=1, ks=3, halo=3),
    ModelConfig(height=70, width=60, nf=48, layers=2, ks=3, halo=4),
]


def cooked(model: ModelConfig, folder: Path) -> tuple[Plan, Mapping[str, bytes]]:
    """Plan ``reference`` of a model, and every blob that it refers to."""
    target = photograph(model.width, model.height).astype(np.float32) / 255
    seeds = {"weights": draw_weights(model).tobytes(), "target": target.tobytes()}
    names = {name: sha256(content) for name, content in seeds.items()}
    packed = pack(
        [Reference(model).build()],
        packs={"model": model.pack()},
        roots=[slang_root()],
        cache=SpirvCache(folder),
        seeds=names,
    )
    return packed.plans["reference"], {**packed.blobs, **{names[name]: seeds[name] for name in seeds}}


def gradient(execution: ExecutionPlan, blobs: Mapping[str, bytes]) -> Array:
    passes = tuple(item.index for item in execution.plan.passes if item.group in ("forward", "loss", "backward"))
    with Engine(execution, blobs.__getitem__) as engine:
        engine.run(passes)
        return np.frombuffer(engine.read("GW"), np.float32).astype(np.float64)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"nf{model.nf}")
def test_both_give_the_same_gradient(model: ModelConfig, device: DeviceSnapshot, tmp_path: Path) -> None:
    plan, blobs = cooked(model, tmp_path)
    execution = plan_execution(device, plan, NO_SWITCHES)
    chosen = {choice.variant.name for choice in execution.choices if plan.passes[choice.index].name in GEMMS}
    if chosen != {"octets"}:
        pytest.skip(f"{device.title} has no subgroups of 8")
    scalar = dataclasses.replace(
        plan, passes=tuple(dataclasses.replace(item, variants=item.variants[-1:]) for item in plan.passes)
    )
    expected = gradient(plan_execution(device, scalar, NO_SWITCHES), blobs)
    assert relative_error(gradient(execution, blobs), expected) <= 1e-5
