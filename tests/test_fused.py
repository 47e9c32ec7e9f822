"""Plan `fused-f16`: what it covers, where its tiles lie, who gets it, and kernels that need no matrix units."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from convtrain.errors import InputError
from convtrain.files.inference import inference_plan
from convtrain.gpu.barriers import accesses, derive
from convtrain.gpu.live.engine import Engine
from convtrain.gpu.plan import choose_plan, plan_execution
from convtrain.gpu.snapshot import DeviceSnapshot
from convtrain.graph.builder import READ, READ_WRITE, WRITE, Graph, Kernel, size
from convtrain.train.schedule import STATE_DTYPE, ScheduleConfig, bias_corrections, learning_rate, observe
from cook.cache import SpirvCache
from cook.model import ModelConfig
from cook.pack import Packed, pack
from cook.recipes.convsiren import build
from cook.recipes.fused import Fused, tiles, unfit
from cook.recipes.fused.base import STATE_WORDS
from cook.recipes.fused.regions import Regions
from cook.recipes.reference import Reference
from cook.sources import slang_root
from device_zoo import H200, LAVAPIPE
from live_device import device

__all__ = ["device"]

MODEL = ModelConfig(height=21, width=30, layers=2, halo=6, kn=4, den=0.1)


def packed(graph: Graph, model: ModelConfig, folder: Path) -> Packed:
    seeds = {"weights": "0" * 64, "target": "1" * 64}
    return pack([graph], packs={"model": model.pack()}, roots=[slang_root()], cache=SpirvCache(folder), seeds=seeds)


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    made = packed(Fused(MODEL).build(), MODEL, tmp_path_factory.mktemp("spirv"))
    assert made.warnings == ()
    return made


def test_it_does_the_work_of_every_reference_pass() -> None:
    covered = {name for item in Fused(MODEL).build().passes for name in item.covers}
    assert covered >= {item.name for item in Reference(MODEL).build().passes}


@pytest.mark.parametrize("other", [{"nf": 64}, {"layers": 1}, {"halo": 5}, {"ks": 1}, {"ks": 11, "halo": 40}])
def test_models_that_the_kernels_do_not_suit_do_without_it(other: dict[str, int]) -> None:
    model = ModelConfig(**{"height": 40, "width": 40, "layers": 2, "halo": 14, **other})
    assert unfit(model)
    assert "fused-f16" not in [graph.name for graph in build(model)]
    assert [graph.name for graph in build(MODEL)] == ["reference", "fused", "fused-f16"]


def test_whoever_touches_layer_0_of_a_fine_model_knows_that_it_is_in_fixed_point(tmp_path: Path) -> None:
    model = replace(MODEL, layers=3, halo=9, fine=1)
    graph = Fused(model).build()
    told = {item.index for item in graph.passes if "FIXED" in item.kernels[0].defines}
    passes = packed(graph, model, tmp_path).plans["fused-f16"].passes
    (features,) = (
        port.buffer for item in passes for port in item.ports if (item.name, port.name) == ("stem_mix", "next")
    )
    users = [item for item in passes if any(port.buffer == features for port in item.ports)]
    assert {item.index for item in users} == told
    assert [item.name for item in users] == ["stem_mix", "conv", "mix", "mix_back", "conv_back"]
    assert not any("FIXED" in item.kernels[0].defines for item in Fused(replace(model, fine=0)).build().passes)
    with pytest.raises(InputError, match="fine must be 0 or 1"):
        replace(MODEL, fine=2)


def test_gentle_waves_have_kernels_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Beside the exact ones, which write the same buffers; and a model package draws with both."""
    plain = packed(Fused(MODEL).build(), MODEL, tmp_path).plans["fused-f16"]
    monkeypatch.setattr(tiles, "SMALLEST_SIDE", 30)
    made = packed(Fused(MODEL).build(), MODEL, tmp_path).plans["fused-f16"]
    more = {item.name for item in made.passes} - {item.name for item in plain.passes}
    assert more == {"wave_tiles", "wave_mix", "wave_moments", "wave_gather", "wave_spread"}
    exact, tiled = (next(item for item in made.passes if item.name == name) for name in ("stem_mix", "wave_mix"))
    written = [{port.name: port.buffer for port in item.ports if port.access.writes} for item in (exact, tiled)]
    assert written[0] == written[1]
    drawn = inference_plan(made, "0" * 64)
    assert [item.name for item in drawn.passes][:5] == ["operands", "wave_tiles", "stem_mix", "wave_mix", "conv"]
    assert {drawn.passes[control.index].name for control in drawn.roles.controls["offset_x"]} == {
        "operands",
        "stem_mix",
    }


@pytest.mark.parametrize("smallest", [1000, 1])
def test_what_runs_side_by_side(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, smallest: int) -> None:
    """Passes without a barrier between them, after the last layer that has its own."""
    monkeypatch.setattr(tiles, "SMALLEST_SIDE", smallest)
    passes = [item for item in packed(Fused(MODEL).build(), MODEL, tmp_path).plans["fused-f16"].passes if not item.skip]
    levels: list[set[str]] = []
    for item, hazards in zip(passes, derive(accesses(item) for item in passes), strict=True):
        if hazards or not levels:
            levels.append(set())
        levels[-1].add(item.name)
    last = max(n for n, level in enumerate(levels) if "conv_back" in level)
    exact = [{"stem_gather", "gather_shares"}, {"gather_mix"}, {"muon", "stem_spread"}]
    tiled = [
        {"stem_gather", "stem_spread", "wave_moments", "gather_shares"},
        {"wave_gather"},
        {"gather_mix"},
        {"muon", "wave_spread"},
    ]
    assert levels[last] == {"gather_mix", "conv_back"}
    assert levels[last + 1 :] == [*(exact if smallest > 1 else tiled), {"gather", "schedule"}, {"step"}]


def test_training_state_is_that_of_the_reference() -> None:
    def state(graph: Graph) -> dict[str, tuple[int, str]]:
        found = graph.resolve_buffers({"weights": "w", "target": "t"})
        return {item.label: (item.elements, item.dtype) for item in found if item.dump}

    mine, theirs = state(Fused(MODEL).build()), state(Reference(MODEL).build())
    assert mine.pop("state") == (STATE_WORDS, "u32")
    assert mine == theirs


@pytest.mark.parametrize("number", range(12))
def test_blocks_of_a_region_and_the_strip_before_it_lie_in_the_map(number: int) -> None:
    rng = np.random.default_rng(number)
    radius, layers = int(rng.integers(1, 5)), int(rng.integers(2, 6))
    height, width = rng.integers(1, 90, 2)
    model = ModelConfig(height=int(height), width=int(width), ks=2 * radius + 1, layers=layers, halo=radius * layers)
    regions = Regions(model)
    for layer in range(1, layers + 1):
        region = regions.features(layer)
        reach = radius * (layers - layer)
        assert (region.x0, region.y0) == (regions.origin_x - reach, regions.origin_y - reach)
        assert region.odd_strip0 >= 1
        assert region.odd_strip0 % 2 == 1  # columns of strips begin with the right strip of a block
        assert region.odd_strip0 <= region.strip0
        assert region.odd_strip0 + region.odd_strips == 2 * (region.pair0 + region.pairs)
        assert region.x1 <= 16 * regions.pairs
        assert region.y0 - radius >= 0
        assert region.y1 <= 4 * regions.bands


def test_matrix_units_get_the_plan_and_others_a_reason(fused: Packed, tmp_path: Path) -> None:
    plans = {**fused.plans, **packed(Reference(MODEL).build(), MODEL, tmp_path).plans}
    execution, rejected = choose_plan(H200, plans)
    assert (execution.plan.name, execution.storage, rejected) == ("fused-f16", "f16", ())
    names = {
        item.name: choice.variant.name for item, choice in zip(execution.plan.passes, execution.choices, strict=True)
    }
    assert {names[name] for name in ("stem_mix", "conv", "mix", "mix_back", "conv_back", "muon")} == {"matrix"}
    execution, rejected = choose_plan(LAVAPIPE, plans)
    assert execution.plan.name == "reference"
    assert "cooperative matrices" in rejected[0].reasons[0] or "matrix" in rejected[0].reasons[0]
    with pytest.raises(InputError):
        plan_execution(LAVAPIPE, plans["fused-f16"])


def test_the_device_decides_as_the_host_does(device: DeviceSnapshot, tmp_path: Path) -> None:
    rules = ScheduleConfig.from_config(MODEL.config())
    names = ("warmup", "ema_decay", "improvement", "patience", "plateau_factor", "plateau_floor")
    values = {"LEARNING_RATE": rules.lr, "WINDOW": 10, **{name.upper(): getattr(rules, name) for name in names}}
    weights = {"LAMBDA_C": 0.25, "LAMBDA_G_OVER_DEN": 0.3, "LAMBDA_S": 0.01}
    counts = {"TERM_GROUPS": 3, "SSIM_GROUPS": 3, "REPORTS": 300, "STEM": 60}
    graph = Graph("schedule")
    item = graph.add(
        "schedule",
        Kernel("fused/schedule.slang", {"cfg": {**values, **weights}, "dims": counts}, groups=(1, 1, 1)),
        group="update",
        ports=[
            size(0, "terms", READ, 12, label="terms"),
            size(1, "ssim", READ, 3, label="ssim"),
            size(2, "broken", READ, 300, label="broken", dtype="u32"),
            size(3, "state", READ_WRITE, STATE_WORDS, label="state", dtype="u32"),
            size(4, "loss", WRITE, 5, label="loss"),
            size(5, "broken_stem", READ, 60, label="broken_stem", dtype="u32"),
        ],
    )
    graph.set_roles(
        weights=item[0], gradient=item[0], target=item[0], output=item[0], loss=item[4], loss_fields=("loss", "mse"),
        state="state", average=[], average_window=10,
    )  # fmt: skip
    made = packed(graph, MODEL, tmp_path)
    host = np.zeros(1, STATE_DTYPE)
    host["plateau_scale"], host["loss_scale"] = 1, 1
    rng = np.random.default_rng(3)
    with Engine(plan_execution(device, made.plans["schedule"]), made.blobs.__getitem__) as engine:
        for epoch in range(1, 101):
            mse = 0.1 / (1 + min(epoch, 8)) * rng.uniform(1, 1.02)
            terms = np.zeros((3, 4), np.float32)
            terms[:, 0] = 3 * MODEL.height * MODEL.width * mse / 3
            broken, broken_stem = np.zeros(300, np.uint32), np.zeros(60, np.uint32)
            broken[epoch] = epoch in (4, 33)
            broken_stem[59] = epoch == 40
            lr = learning_rate(rules, epoch, float(host[0]["plateau_scale"]))
            corrections = bias_corrections(int(host[0]["step"]) + 1)
            if epoch == 7:
                terms[1, 2] = np.inf
            engine.write("terms", terms.tobytes())
            engine.write("broken", broken.tobytes())
            engine.write("broken_stem", broken_stem.tobytes())
            engine.run((0,))
            loss = np.frombuffer(engine.read("loss"), np.float32)
            assert np.isfinite(loss[0]) == (epoch not in (4, 7, 33, 40))
            np.testing.assert_allclose(loss[1], mse, rtol=1e-6)
            observe(rules, host[0], float(loss[0]), float(loss[1]))
            words = np.frombuffer(engine.read("state"), np.uint32)
            assert (words[:4] == [host[0][name] for name in ("epoch", "step", "bad", "skipped")]).all(), epoch
            found = words.view(np.float32)
            expected = [host[0][name] for name in ("plateau_scale", "ema", "best", "loss_scale")]
            np.testing.assert_allclose(found[4:8], expected, rtol=1e-6)
            np.testing.assert_allclose(found[8:11], [lr, *corrections], rtol=2e-6)
            assert words[11] == (epoch - 1) % 10
    assert host[0]["plateau_scale"] < 1
