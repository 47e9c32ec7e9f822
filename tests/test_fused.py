"""Plan `fused`: what it covers, where its tiles lie, which devices get it, and kernels that need no matrix units."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from convtrain.errors import InputError
from convtrain.gpu.live.engine import Engine
from convtrain.gpu.plan import choose_plan, plan_execution
from convtrain.gpu.snapshot import DeviceSnapshot
from convtrain.graph.builder import READ, READ_WRITE, Graph, Kernel, size
from convtrain.train.schedule import STATE_DTYPE, ScheduleConfig, bias_corrections, learning_rate, observe
from cook.cache import SpirvCache
from cook.model import ModelConfig
from cook.pack import Packed, pack
from cook.recipes.convsiren import build
from cook.recipes.fused import Fused, is_fusable
from cook.recipes.fused.base import STATE_WORDS
from cook.recipes.fused.regions import TILE_ROWS, Regions
from cook.recipes.reference import Reference
from cook.sources import slang_root
from device_zoo import H200, LAVAPIPE
from live_device import device
from oracle.layout import Config, random_weights, unpack
from oracle.model import coordinates, depthwise, kernel

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
def test_models_that_the_kernels_do_not_suit_have_the_reference_only(other: dict[str, int]) -> None:
    model = ModelConfig(**{"height": 40, "width": 40, "layers": 2, "halo": 14, **other})
    assert not is_fusable(model)
    assert [graph.name for graph in build(model)] == ["reference"]
    assert [graph.name for graph in build(MODEL)] == ["reference", "fused"]


def test_training_state_is_that_of_the_reference() -> None:
    def state(graph: Graph) -> dict[str, tuple[int, str]]:
        found = graph.resolve_buffers({"weights": "w", "target": "t"})
        return {item.label: (item.elements, item.dtype) for item in found if item.dump}

    mine, theirs = state(Fused(MODEL).build()), state(Reference(MODEL).build())
    assert mine.pop("state") == (STATE_WORDS, "u32")
    assert mine == theirs


@pytest.mark.parametrize("number", range(12))
def test_tiles_and_their_neighbourhood_lie_in_the_map(number: int) -> None:
    rng = np.random.default_rng(number)
    radius, layers, span = int(rng.integers(1, 5)), int(rng.integers(2, 6)), int(rng.integers(2, 7))
    height, width = rng.integers(1, 90, 2)
    model = ModelConfig(height=int(height), width=int(width), ks=2 * radius + 1, layers=layers, halo=radius * layers)
    regions = Regions(model, span)
    for layer in range(1, layers + 1):
        region = regions.features(layer)
        reach = radius * (layers - layer)
        assert (region.x0, region.y0) == (regions.origin_x - reach, regions.origin_y - reach)
        across, down = -(-region.strips // span), -(-region.rows // TILE_ROWS)
        assert region.strip0 >= 1
        assert region.strip0 + across * span + 1 <= regions.strips
        assert region.y0 - radius >= 0
        assert region.y0 + down * TILE_ROWS + radius <= 8 * regions.blocks


def test_matrix_units_get_the_plan_and_others_a_reason(fused: Packed, tmp_path: Path) -> None:
    plans = {**fused.plans, **packed(Reference(MODEL).build(), MODEL, tmp_path).plans}
    execution, rejected = choose_plan(H200, plans)
    assert (execution.plan.name, execution.storage, rejected) == ("fused", "f16", ())
    names = {
        item.name: choice.variant.name for item, choice in zip(execution.plan.passes, execution.choices, strict=True)
    }
    assert {names[name] for name in ("conv", "mix", "mix_back", "conv_back", "muon_gram")} == {"matrix"}
    execution, rejected = choose_plan(LAVAPIPE, plans)
    assert execution.plan.name == "reference"
    assert "cooperative matrices" in rejected[0].reasons[0] or "matrix" in rejected[0].reasons[0]
    with pytest.raises(InputError):
        plan_execution(LAVAPIPE, plans["fused"])


def test_the_device_decides_as_the_host_does(device: DeviceSnapshot, tmp_path: Path) -> None:
    rules = ScheduleConfig.from_config(MODEL.config())
    names = ("warmup", "ema_decay", "improvement", "patience", "plateau_factor", "plateau_floor")
    values = {"LEARNING_RATE": rules.lr, "WINDOW": 10, **{name.upper(): getattr(rules, name) for name in names}}
    graph = Graph("schedule")
    item = graph.add(
        "schedule",
        Kernel("fused/schedule.slang", {"cfg": values}, groups=(1, 1, 1)),
        group="update",
        ports=[
            size(0, "loss", READ, 5, label="loss"),
            size(1, "state", READ_WRITE, STATE_WORDS, label="state", dtype="u32"),
        ],
    )
    graph.set_roles(
        weights=item[0], gradient=item[0], target=item[0], output=item[0], loss=item[0], loss_fields=("loss", "mse"),
        state="state", average=[], average_window=10,
    )  # fmt: skip
    made = packed(graph, MODEL, tmp_path)
    host = np.zeros(1, STATE_DTYPE)
    host["plateau_scale"], host["loss_scale"] = 1, 1
    rng = np.random.default_rng(3)
    with Engine(plan_execution(device, made.plans["schedule"]), made.blobs.__getitem__) as engine:
        for epoch in range(1, 101):
            mse = 0.1 / (1 + min(epoch, 8)) * rng.uniform(1, 1.02)
            loss = np.array([np.nan if epoch in (4, 33) else mse, mse, 0, 0, 0], np.float32)
            lr = learning_rate(rules, epoch, float(host[0]["plateau_scale"]))
            corrections = bias_corrections(int(host[0]["step"]) + 1)
            engine.write("loss", loss.tobytes())
            engine.run((0,))
            observe(rules, host[0], float(loss[0]), float(loss[1]))
            words = np.frombuffer(engine.read("state"), np.uint32)
            assert (words[:4] == [host[0][name] for name in ("epoch", "step", "bad", "skipped")]).all(), epoch
            found = words.view(np.float32)
            expected = [host[0][name] for name in ("plateau_scale", "ema", "best", "loss_scale")]
            np.testing.assert_allclose(found[4:8], expected, rtol=1e-6)
            np.testing.assert_allclose(found[8:11], [lr, *corrections], rtol=2e-6)
            assert words[11] == (epoch - 1) % 10
    assert host[0]["plateau_scale"] < 1


def unpack_map(words: bytes, regions: Regions, features: int) -> NDArray[np.uint16]:
    """A stored map as (feature, row, column)."""
    stored = np.frombuffer(words, np.uint16).reshape(regions.strips, regions.blocks, features, 8, 8)
    pixels: NDArray[np.uint16] = stored.transpose(2, 1, 3, 0, 4)
    return pixels.reshape(features, 8 * regions.blocks, 8 * regions.strips)


def test_stem_waves_and_toeplitz_matrices(device: DeviceSnapshot, tmp_path: Path) -> None:
    if not (device.float16 and device.storage_16bit):
        pytest.skip("no fp16 storage on this device")
    plan = Fused(MODEL)
    plan._kern()
    plan._operands()
    stem = plan._plane_waves()
    plan.graph.bcast(plan.weights, plan._weight_readers, port=0)
    any_port = plan.weights
    plan.graph.set_roles(
        weights=any_port, gradient=any_port, target=any_port, output=stem[2], loss=any_port, loss_fields=(),
        state="state", average=[], average_window=10,
    )  # fmt: skip
    made = packed(plan.graph, MODEL, tmp_path)
    config = Config.of(MODEL.config())
    weights = random_weights(config, np.random.default_rng(5)).astype(np.float32)
    w, taps = unpack(weights.astype(np.float64), config), kernel(unpack(weights.astype(np.float64), config), config)
    with Engine(plan_execution(device, made.plans["fused"]), lambda sha: weights.tobytes()
                if sha == "0" * 64 else made.blobs[sha]) as engine:  # fmt: skip
        engine.run((0, 1, 2))
        h = unpack_map(engine.read("2-2"), plan.regions, MODEL.nf)
        d = unpack_map(engine.read("2-3"), plan.regions, MODEL.nf)
        toeplitz = np.frombuffer(engine.read("1-2"), np.float16).reshape(MODEL.nf, 2, -1, 2, 8, 16)
    # Compare on the region that the plan computes: there, taps stay within the oracle's domain.
    z = 30 * (np.einsum("kyx,fk->fyx", coordinates(config), w["stem.w"]) + w["stem.b"][:, None, None])
    full = np.sin(z)
    region = plan.regions.widest
    inset = MODEL.halo - (plan.regions.origin_y - region.y0)
    rows, columns = slice(region.y0, region.y1), slice(region.x0, region.x1)
    inner = (slice(None), slice(inset, inset + region.rows), slice(inset, inset + region.x1 - region.x0))
    value = (h & 0xBFFF).view(np.float16).astype(np.float64)[:, rows, columns]
    np.testing.assert_allclose(value, full[inner], atol=3e-4)
    negative, cosine = (h & 0x4000)[:, rows, columns] != 0, np.cos(z)[inner]
    assert (negative == (cosine < 0))[np.abs(cosine) > 1e-3].all()
    expected = (depthwise(full, taps, config) + w["dw.b"][:, None, None])[inner]
    np.testing.assert_allclose(d.view(np.float16).astype(np.float64)[:, rows, columns], expected, rtol=1e-3, atol=1e-3)
    # T_r[(dy, dx)][s] is the tap at (r - dy, s - dx - 4 + RADIUS), forward and flipped.
    reach, side = MODEL.radius, MODEL.ks
    for kind, wanted in enumerate((taps, taps[:, ::-1, ::-1])):
        for r in range(side + 1):
            for dy in range(2):
                for dx in range(8):
                    row = np.zeros((MODEL.nf, 16))
                    if 0 <= r - dy < side:
                        first = dx + 4 - reach
                        row[:, first : first + side] = wanted[:, r - dy]
                    np.testing.assert_allclose(toeplitz[:, kind, r, dy, dx], row, rtol=1e-3, atol=1e-6)
