"""Plan `fused`: what it covers, where its boxes lie, who gets it, and that all variants of its kernels agree."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from convtrain.cli.devices import describe, render
from convtrain.errors import InputError
from convtrain.files.archive import TrainingArchive, open_archive
from convtrain.gpu.live.engine import Engine
from convtrain.gpu.plan import choose_plan, plan_execution
from convtrain.gpu.snapshot import DeviceSnapshot
from convtrain.gpu.switches import NO_SWITCHES, Switches
from convtrain.graph.builder import Graph
from convtrain.train.stepper import training_passes
from cook.model import ModelConfig
from cook.recipes.convsiren import build, left_out
from cook.recipes.fused_scalar import FusedScalar
from cook.recipes.fused_scalar.base import STATE_WORDS, WALK
from cook.recipes.fused_scalar.boxes import QUAD, SPAN, Boxes
from cook.recipes.reference import Reference
from device_zoo import H200, LAVAPIPE, PLAIN, SWIFTSHADER
from live_device import device, listening, validated
from oracle.gradient import loss_and_gradient
from oracle.layout import slots
from workspace import Workspace, photograph, relative_error

__all__ = ["device", "listening", "validated"]

MODEL = ModelConfig(height=21, width=30, nf=16, layers=2, ks=5, halo=4, kn=4, den=0.1)
LARGE = ModelConfig(height=128, width=128, nf=32, den=0.1)


@pytest.fixture(scope="module")
def cooked(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A model of two eights of features, three layers, and more taps than a quad is wide."""
    place = Workspace(tmp_path_factory.mktemp("cooked"))
    place.cook(photograph(18, 13), nf=16, layers=3, ks=11, kn=3)
    return place


@pytest.fixture
def archive(cooked: Workspace) -> TrainingArchive:
    return open_archive(cooked.archive)


def test_it_does_the_work_of_every_reference_pass() -> None:
    covered = {name for item in FusedScalar(MODEL).build().passes for name in item.covers}
    assert covered >= {item.name for item in Reference(MODEL).build().passes}


def test_training_state_is_that_of_the_reference() -> None:
    def state(graph: Graph) -> dict[str, tuple[int, str]]:
        found = graph.resolve_buffers({"weights": "w", "target": "t"})
        return {item.label: (item.elements, item.dtype) for item in found if item.dump}

    mine, theirs = state(FusedScalar(MODEL).build()), state(Reference(MODEL).build())
    assert mine.pop("state") == (STATE_WORDS, "u32")
    assert mine == theirs


def test_a_domain_that_ends_too_soon_is_the_reference_s_alone() -> None:
    model = replace(MODEL, halo=3)
    assert [graph.name for graph in build(model)] == ["reference"]
    assert left_out(model)["fused"] == "what the loss sees reaches 4 pixels beyond the image, and halo is 3"
    assert "fused" not in left_out(MODEL)


def test_a_setting_that_no_plan_heeds_is_refused() -> None:
    with pytest.raises(InputError, match=r"fine=1 changes plan fused-f16 alone.*made for nf=128, and nf is 32\. Leave"):
        build(replace(MODEL, nf=32, fine=1))


@pytest.mark.parametrize("number", range(12))
def test_what_kernels_read_and_write_lies_in_the_map(number: int) -> None:
    rng = np.random.default_rng(number)
    radius, layers = int(rng.integers(0, 7)), int(rng.integers(1, 6))
    height, width = map(int, rng.integers(1, 90, 2))
    model = ModelConfig(height=height, width=width, ks=2 * radius + 1, layers=layers, halo=radius * layers)
    boxes = Boxes(model)
    rows = boxes.elements // (QUAD * boxes.quads * model.nf)
    beside = -(-radius // QUAD)
    assert boxes.column0 % QUAD == 0
    for layer in range(1, layers + 1):
        box, reach = boxes.features(layer), radius * (layers - layer)
        assert (box.row0, box.rows) == (boxes.row0 - reach, height + 2 * reach)
        assert QUAD * box.quad0 <= boxes.column0 - reach
        assert QUAD * (box.quad0 + box.quads) >= boxes.column0 + width + reach
        assert box.row0 >= 0
        assert box.row0 + box.rows <= rows
        assert box.quad0 - beside >= 0
        assert box.quad0 + box.strips * SPAN + beside <= boxes.quads


def test_each_type_of_device_gets_its_variants(archive: TrainingArchive) -> None:
    def variants(snapshot: DeviceSnapshot) -> dict[str, str]:
        execution = plan_execution(snapshot, archive.plans["fused"])
        pairs = zip(execution.plan.passes, execution.choices, strict=True)
        return {item.name: choice.variant.name for item, choice in pairs}

    assert variants(LAVAPIPE).items() >= {"mix": "octets", "conv": "texels", "stem": "scalar"}.items()
    assert variants(SWIFTSHADER).items() >= {"mix": "texels", "conv": "texels"}.items()
    narrow = replace(SWIFTSHADER, limits=replace(SWIFTSHADER.limits, texel_elements=64))
    assert variants(narrow)["mix"] == "scalar"
    assert set(variants(PLAIN)) == {item.name for item in archive.plans["fused"].passes}


def test_devices_says_what_auto_means(archive: TrainingArchive) -> None:
    assert choose_plan(LAVAPIPE, archive.plans)[0].plan.name == "fused"
    said = render(describe(LAVAPIPE, archive.plans, NO_SWITCHES))
    assert "plan auto: fused. Preferred on this type of device: fused, then reference" in said
    assert describe(H200, archive.plans, NO_SWITCHES)["preference"] == ["reference", "fused"]
    assert describe(H200, archive.plans, Switches(plan="fused"))["auto"] == "fused"


def first_epoch(snapshot: DeviceSnapshot, archive: TrainingArchive, switches: Switches) -> dict[str, bytes]:
    execution = plan_execution(snapshot, archive.plans["fused"], switches)
    with Engine(execution, archive.blob) as engine:
        engine.run(training_passes(execution.plan))
        return {name: engine.read(name) for name in ("GW", "Out", "loss")}


def test_every_variant_computes_the_same(
    device: DeviceSnapshot, validated: Switches, archive: TrainingArchive, cooked: Workspace
) -> None:
    plain = replace(device, subgroup=replace(device.subgroup, operations=()))
    bare = Switches(no_texels=True).apply(plain)
    kinds = [plan_execution(item, archive.plans["fused"]).variant_classes() for item in (device, plain, bare)]
    assert set(kinds[2]) == {"scalar"}
    config, picture = cooked.config(), photograph(18, 13) / 255.0
    _, expected = loss_and_gradient(cooked.weights(cooked.archive), picture, config)
    for snapshot in (device, plain, bare):
        found = np.frombuffer(first_epoch(snapshot, archive, validated)["GW"], np.float32)
        errors = {slot.name: relative_error(found[slot.span], expected[slot.span]) for slot in slots(config)}
        assert max(errors.values()) <= 1e-4, errors


def test_a_tall_picture_is_walked_down_in_parts(device: DeviceSnapshot, tmp_path: Path) -> None:
    picture = photograph(12, WALK + 30)
    place = Workspace(tmp_path)
    place.cook(picture, f"--size=12x{WALK + 30}", nf=8, layers=2, ks=3, kn=2)
    config = place.config()
    _, expected = loss_and_gradient(place.weights(place.archive), picture / 255.0, config)
    with open_archive(place.archive) as archive:
        found = np.frombuffer(first_epoch(device, archive, NO_SWITCHES)["GW"], np.float32)
    errors = {slot.name: relative_error(found[slot.span], expected[slot.span]) for slot in slots(config)}
    assert max(errors.values()) <= 1e-4, errors


def test_a_checkpoint_goes_on_in_the_other_plan(cooked: Workspace, tmp_path: Path) -> None:
    """Three epochs, the second of them in the other plan, against three in one."""
    weights = []
    for order in (("reference",) * 3, ("reference", "fused", "reference"), ("fused", "reference", "fused")):
        place = Workspace(tmp_path / "-".join(order))
        os.mkdir(place.folder)
        place.receive(cooked.archive.read_bytes())
        for plan in order:
            place.convtrain("run", 1, "--plan", plan, "--quiet")
        weights.append(place.weights(place.checkpoint))
    for other in weights[1:]:
        assert relative_error(other, weights[0]) < 1e-5
