"""Model packages: the averaged weights and an inference plan that stands on its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from convtrain.errors import InputError
from convtrain.files.archive import TrainingArchive, open_archive
from convtrain.files.container import open_container, sha256, write_container
from convtrain.files.inference import inference_plan
from convtrain.files.package import open_package, write_package
from convtrain.files.plans import blobs_of, flaw
from convtrain.graph.parse import plan_from_json
from convtrain.graph.types import Control, Kind, Plan, to_json
from toy_resources import (
    METRICS,
    averaged_weights,
    fused_plan,
    make_archive,
    make_checkpoint,
    make_package,
    reference_plan,
    target,
)

WEIGHTS = sha256(averaged_weights())


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[TrainingArchive]:
    with open_archive(make_archive(tmp_path)) as archive:
        yield archive


def without_pass(plan: Plan, index: int, **changes: object) -> Plan:
    """The plan with one of its passes changed."""
    passes = tuple(replace(item, **changes) if item.index == index else item for item in plan.passes)  # type: ignore[arg-type]
    return replace(plan, passes=passes)


def test_cutting_keeps_the_numbers_where_nothing_stands_before() -> None:
    plan = reference_plan()
    cut = inference_plan(plan, WEIGHTS)
    assert [(item.index, item.name) for item in cut.passes] == [(0, "stem"), (1, "head")]
    assert [item.ports for item in cut.passes] == [item.ports for item in plan.passes[:2]]
    assert [item.variants for item in cut.passes] == [item.variants for item in plan.passes[:2]]
    assert [(item.id, item.label) for item in cut.buffers] == [("0-0", "WBuf"), ("0-1", "0-1"), ("1-2", "Out")]
    assert flaw(cut) is None


def test_cutting_renumbers_and_hands_over_buffers() -> None:
    cut = inference_plan(fused_plan(), WEIGHTS)
    (only,) = cut.passes
    assert only.index == 0
    assert [(port.number, port.kind, port.buffer) for port in only.ports] == [
        (4, Kind.DATA, "0-4"),
        (5, Kind.SIZE, "0-5"),
    ]
    assert cut.buffer("WBuf").id == cut.roles.weights == "0-4"
    assert cut.buffer("Out").id == cut.roles.output == "0-5"
    assert cut.roles.controls == {"offset_x": (Control(0, "ox"),), "offset_y": (Control(0, "oy"),)}
    assert cut.storages == ("f16", "f32")
    assert flaw(cut) is None


@pytest.mark.parametrize("plan", [reference_plan(), fused_plan()], ids=["reference", "fused"])
def test_nothing_of_training_is_left(plan: Plan) -> None:
    cut = inference_plan(plan, WEIGHTS)
    assert cut.buffer("WBuf").seed == WEIGHTS
    assert not any(buffer.dump for buffer in cut.buffers)
    assert not any(item.uniform and item.uniform.dump for item in cut.passes)
    roles = cut.roles
    assert (roles.gradient, roles.target, roles.loss, roles.state, roles.average) == ("", "", "", "", ())
    assert plan_from_json(to_json(cut)) == cut
    assert inference_plan(cut, WEIGHTS) == cut


def test_an_inference_pass_may_not_need_what_training_makes() -> None:
    with pytest.raises(ValueError, match="head reads h, which none writes"):
        inference_plan(without_pass(reference_plan(), 0, infer=False), WEIGHTS)
    with pytest.raises(ValueError, match="no output"):
        inference_plan(without_pass(reference_plan(), 1, infer=False), WEIGHTS)


def test_round_trip(tmp_path: Path, archive: TrainingArchive) -> None:
    with open_package(make_package(tmp_path, archive)) as package:
        assert package.averaged_weights() == averaged_weights()
        assert package.weights.split(package.averaged_weights())["mix.0"].tolist() == [[50, 51, 52], [53, 54, 55]]
        assert (package.height, package.width) == (3, 3)
        assert package.metrics == METRICS
        assert package.archive == archive.identity
        assert package.config == archive.config
        assert "Pixel centres" in package.coordinates
        assert list(package.plans) == ["reference", "fused"]
        for name, plan in package.plans.items():
            assert plan == inference_plan(archive.plans[name], WEIGHTS)
            for blob in blobs_of(plan):
                assert package.blob(blob) == (averaged_weights() if blob == WEIGHTS else archive.blob(blob))


def test_a_package_carries_nothing_else(tmp_path: Path, archive: TrainingArchive) -> None:
    path = make_package(tmp_path, archive)
    with open_container(path) as container, open_package(path) as package:
        needed = {blob for plan in package.plans.values() for blob in blobs_of(plan)}
        assert set(container.blobs) == needed
        assert sha256(target()) not in needed


def test_the_same_training_gives_the_same_bytes(tmp_path: Path, archive: TrainingArchive) -> None:
    first = make_package(tmp_path, archive).read_bytes()
    (tmp_path / "elsewhere").mkdir()
    with open_archive(make_archive(tmp_path / "elsewhere")) as other:
        assert make_package(tmp_path / "elsewhere", other).read_bytes() == first
    assert str(tmp_path).encode() not in first


def test_weights_of_another_length_are_a_bug(tmp_path: Path, archive: TrainingArchive) -> None:
    with pytest.raises(ValueError, match="44 bytes of weights instead of 48"):
        write_package(tmp_path / "m.res", archive, "reference", averaged_weights()[4:], METRICS)


def test_wrong_kinds(tmp_path: Path, archive: TrainingArchive) -> None:
    with pytest.raises(InputError, match=r"training archive, and a model package is needed.*convtrain run"):
        open_package(archive.path)
    with pytest.raises(InputError, match=r"checkpoint, and a model package is needed.*convtrain run 0"):
        open_package(make_checkpoint(tmp_path, archive))
    with pytest.raises(InputError, match=r"no model package.*convtrain run"):
        open_package(tmp_path / "missing.res")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("image", {"height": 3}),
        ("image", {"height": 3, "width": "3"}),
        ("weights", {}),
        ("metrics", None),
        ("coordinates", None),
        ("plan", None),
        ("archive", 1),
    ],
)
def test_packages_that_make_no_sense_are_refused(
    tmp_path: Path, archive: TrainingArchive, key: str, value: object
) -> None:
    path = make_package(tmp_path, archive)
    with open_container(path) as container:
        manifest, blobs = container.manifest, {name: bytes(container.blob(name)) for name in container.blobs}
    write_container(path, "model", {**manifest, key: value}, blobs)
    with pytest.raises(InputError, match="cannot be used: its manifest"):
        open_package(path)


@pytest.mark.parametrize("storages", [(), ("x",)])
def test_a_plan_without_a_storage_is_none(storages: tuple[str, ...]) -> None:
    assert "storage" in str(flaw(replace(reference_plan(), storages=storages)))


@pytest.mark.parametrize("blob", ["0" * 64, ["x"], None, sha256(b"shader")])
def test_packages_whose_weights_are_not_there(tmp_path: Path, archive: TrainingArchive, blob: object) -> None:
    path = make_package(tmp_path, archive)
    with open_container(path) as container:
        manifest, blobs = container.manifest, {name: bytes(container.blob(name)) for name in container.blobs}
    write_container(path, "model", {**manifest, "weights": {**manifest["weights"], "blob": blob}}, blobs)
    with pytest.raises(InputError, match="cannot be used"):
        open_package(path)
