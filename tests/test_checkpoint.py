"""Checkpoints: one naming rule, exact restoration, state carried between plans by label."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from convtrain.errors import InputError
from convtrain.files.archive import TrainingArchive, open_archive
from convtrain.files.checkpoint import finite, open_checkpoint, state_entries, write_checkpoint
from convtrain.files.container import open_container, sha256, write_container
from convtrain.graph.types import Uniform, UniformField, to_json
from convtrain.train.state import read_state, write_state
from toy_resources import (
    COUNT,
    METRICS,
    archive_parts,
    fused_plan,
    make_archive,
    make_checkpoint,
    make_package,
    make_state,
    reference_plan,
    with_buffer,
)


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[TrainingArchive]:
    with open_archive(make_archive(tmp_path)) as archive:
        yield archive


def test_entries_are_named_by_pass_and_port() -> None:
    entries = state_entries(reference_plan())
    assert [(item.name, item.label, item.nbytes) for item in entries] == [
        ("0-0.bin", "WBuf", 4 * COUNT),
        ("3-2.bin", "adam_m", 4 * COUNT),
        ("3-u.bin", "state", 16),
    ]
    assert [item.name for item in state_entries(fused_plan())] == ["0-0.bin", "0-1.bin", "0-u.bin"]


def test_state_whose_type_depends_on_the_device_is_refused() -> None:
    with pytest.raises(ValueError, match="element type"):
        state_entries(with_buffer(reference_plan(), "adam_m", dtype="store"))


def test_the_same_plan_gets_the_same_bytes_back(tmp_path: Path, archive: TrainingArchive) -> None:
    path = make_checkpoint(tmp_path, archive)
    with open_checkpoint(path, archive) as checkpoint:
        assert checkpoint.restore(archive.plans["reference"]) == make_state()
        assert checkpoint.raw_weights() == make_state()["WBuf"]
        assert checkpoint.metrics == METRICS
        assert checkpoint.config == archive.config
        assert checkpoint.weights == archive.weights
        assert checkpoint.plan == archive.plans["reference"]


def test_the_file_depends_on_the_state_alone(tmp_path: Path, archive: TrainingArchive) -> None:
    first = make_checkpoint(tmp_path, archive).read_bytes()
    state = make_state()
    backwards = {label: memoryview(state[label]) for label in reversed(state)}
    write_checkpoint(tmp_path / "again.res", archive, archive.plans["reference"], backwards, METRICS)
    assert (tmp_path / "again.res").read_bytes() == first


def test_entries_with_equal_content_share_a_blob(tmp_path: Path, archive: TrainingArchive) -> None:
    state = {**make_state(), "WBuf": bytes(4 * COUNT), "adam_m": bytes(4 * COUNT)}
    write_checkpoint(tmp_path / "c.res", archive, reference_plan(), state, {})
    with open_checkpoint(tmp_path / "c.res") as checkpoint:
        assert checkpoint.restore(reference_plan()) == state


def test_another_plan_gets_its_state_by_label(tmp_path: Path, archive: TrainingArchive) -> None:
    with open_checkpoint(make_checkpoint(tmp_path, archive), archive) as checkpoint:
        state = checkpoint.restore(archive.plans["fused"])
    assert state["WBuf"] == make_state()["WBuf"]
    assert state["adam_m"] == make_state()["adam_m"]
    block = np.frombuffer(state["state"], "<f4")
    assert block[0] == 0.125  # lr stands first here
    assert block.view("<u4")[1] == 7
    assert block[2] == 0.25


def test_uniform_fields_of_another_name_or_type_start_anew(tmp_path: Path, archive: TrainingArchive) -> None:
    fields = (UniformField("epoch", 0, "f32"), UniformField("lr", 4, "f32"), UniformField("best", 8, "i32"))
    uniform = Uniform(12, fields, dump=True, label="state", initial={"best": -3, "epoch": 2.5})
    plan = reference_plan()
    other = replace(plan, passes=(*plan.passes[:3], replace(plan.passes[3], uniform=uniform)))
    with open_checkpoint(make_checkpoint(tmp_path, archive)) as checkpoint:
        block = np.frombuffer(checkpoint.restore(other)["state"], "<f4")
    assert block.tolist()[:2] == [2.5, 0.125]
    assert block.view("<i4")[2] == -3


def test_state_that_a_plan_needs_and_the_checkpoint_lacks(tmp_path: Path, archive: TrainingArchive) -> None:
    with open_checkpoint(make_checkpoint(tmp_path, archive)) as checkpoint:
        for plan, reason in (
            (with_buffer(reference_plan(), "GW", dump=True), "has no GW"),
            (with_buffer(reference_plan(), "adam_m", elements=9), "48 bytes of adam_m instead of 36"),
            (with_buffer(reference_plan(), "adam_m", label="state"), "16 bytes of state instead of 48"),
        ):
            with pytest.raises(InputError, match=f"{reason}.*--plan reference.*--fresh"):
                checkpoint.restore(plan)


def test_another_archives_checkpoint_is_refused(tmp_path: Path, archive: TrainingArchive) -> None:
    path = make_checkpoint(tmp_path, archive)
    (tmp_path / "other").mkdir()
    with (
        open_archive(make_archive(tmp_path / "other", lr=1e-3)) as other,
        pytest.raises(InputError, match=r"another training archive.*--fresh"),
    ):
        open_checkpoint(path, other)


@pytest.mark.parametrize("damage", [{"WBuf": None}, {"extra": b""}, {"adam_m": bytes(44)}])
def test_writing_less_or_more_than_the_state_is_a_bug(
    tmp_path: Path, archive: TrainingArchive, damage: dict[str, bytes | None]
) -> None:
    state = {label: data for label, data in {**make_state(), **damage}.items() if data is not None}
    with pytest.raises(ValueError, match="state"):
        write_checkpoint(tmp_path / "c.res", archive, reference_plan(), state, {})
    assert not (tmp_path / "c.res").exists()


def test_metrics_are_strict_json(tmp_path: Path, archive: TrainingArchive) -> None:
    metrics = {"epoch": 1, "psnr": math.inf, "ssim": None, "loss": math.nan}
    write_checkpoint(tmp_path / "c.res", archive, reference_plan(), make_state(), metrics)
    with open_checkpoint(tmp_path / "c.res") as checkpoint:
        assert checkpoint.metrics == finite(metrics) == {"epoch": 1, "psnr": None, "ssim": None, "loss": None}


def test_the_archive_is_found_in_its_folder_and_by_name(tmp_path: Path) -> None:
    path = make_archive(tmp_path)
    for place in (path, tmp_path):
        with open_archive(place) as archive:
            assert archive.path == path
            assert list(archive.plans) == ["reference", "fused"]
            assert archive.plans["fused"] == fused_plan()
            assert archive.compiler == "toy-1"
            assert len(archive.blob(archive.seeds["target"])) == 27 * 4
    with pytest.raises(InputError, match=r"no training archive.*convtrain cook"):
        open_archive(tmp_path / "nowhere")


def test_wrong_kinds(tmp_path: Path, archive: TrainingArchive) -> None:
    with pytest.raises(InputError, match=r"model package.*training archive is needed"):
        open_archive(make_package(tmp_path, archive))
    with pytest.raises(InputError, match="training archive, and a checkpoint is needed"):
        open_checkpoint(archive.path)


def _set(manifest: dict, *keys: object, value: object) -> None:
    for key in keys[:-1]:
        manifest = manifest[key]
    manifest[keys[-1]] = value


PASS = ("plans", "reference", "passes", 3)


@pytest.mark.parametrize(
    "change",
    [
        ("config", None),
        ("compiler", 5),
        ("seeds", {}),
        ("seeds", "target", "0" * 64),
        ("seeds", "target", ["x"]),
        ("seeds", "weights", sha256(b"elsewhere")),
        ("weights", None),
        ("weights", "count", 5),
        ("weights", "count", True),
        ("weights", "count", 10**30),
        ("weights", "slots", 0, "offset", -1),
        ("weights", "slots", 0, "shape", [2, 0]),
        ("weights", "slots", 0, "shape", ["2"]),
        ("weights", "slots", 0, "shape", 3),
        ("weights", "slots", 0, "name", "head.b"),
        ("weights", "slots", 7),
        ("plans", {}),
        ("plans", []),
        ("plans", "reference", None),
        ("plans", "reference", "name", "other"),
        ("plans", "reference", "storages", 3),
        ("plans", "reference", "passes", {}),
        ("plans", "reference", "roles", "weights", "9-9"),
        ("plans", "reference", "roles", "average", [99]),
        ("plans", "reference", "roles", "controls", {"lr": [{"index": 99, "field": "lr"}]}),
        ("plans", "reference", "buffers", 0, "elements", 0),
        ("plans", "reference", "buffers", 0, "elements", "12"),
        ("plans", "reference", "buffers", 0, "dtype", "f64"),
        ("plans", "reference", "buffers", 0, "seed", sha256(b"elsewhere")),
        ("plans", "reference", "buffers", 0, "label", "GW"),
        (*PASS, "index", 2),
        (*PASS, "name", None),
        (*PASS, "variants", []),
        (*PASS, "variants", 0, "spirv", sha256(b"elsewhere")),
        (*PASS, "variants", 0, "groups", [0, 1, 1]),
        (*PASS, "variants", 0, "groups", [1, 1]),
        (*PASS, "variants", 0, "requires", None),
        (*PASS, "ports", 0, "buffer", "9-9"),
        (*PASS, "ports", 0, "access", "x"),
        (*PASS, "ports", 0, "surprise", 1),
        (*PASS, "uniform", "fields", 0, "offset", 16),
        (*PASS, "uniform", "fields", 0, "dtype", "f64"),
        (*PASS, "uniform", "initial", ["ema"]),
    ],
    ids=lambda change: "-".join(map(str, change))[:60],
)
def test_manifests_that_make_no_sense_are_refused_in_one_sentence(tmp_path: Path, change: tuple) -> None:
    manifest, blobs = archive_parts()
    _set(manifest, *change[:-1], value=change[-1])
    write_container(tmp_path / "train.res", "training", manifest, blobs)
    with pytest.raises(InputError, match="cannot be used: its manifest"):
        open_archive(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        ("archive", None),
        ("metrics", []),
        ("entries", {}),
        ("entries", "3-u.bin", sha256(b"elsewhere")),
        ("entries", "9-9.bin", sha256(b"elsewhere")),
        ("entries", "3-u.bin", 5),
        ("plans", "fused", to_json(fused_plan())),
        ("plans", "reference", "buffers", 0, "dtype", "store"),
        ("plans", "reference", "passes", 3, "uniform", "size", 32),
    ],
    ids=lambda change: "-".join(map(str, change))[:60],
)
def test_checkpoints_that_make_no_sense_are_refused(tmp_path: Path, archive: TrainingArchive, change: tuple) -> None:
    path = make_checkpoint(tmp_path, archive)
    with open_container(path) as container:
        manifest, blobs = container.manifest, {name: bytes(container.blob(name)) for name in container.blobs}
    _set(manifest, *change[:-1], value=change[-1])
    write_container(path, "checkpoint", manifest, blobs)
    with pytest.raises(InputError, match="cannot be used: its manifest"):
        open_checkpoint(path)


def test_a_checkpoint_that_does_not_say_where_its_weights_are(tmp_path: Path, archive: TrainingArchive) -> None:
    plan = with_buffer(reference_plan(), "WBuf", dump=False)
    state = {label: data for label, data in make_state().items() if label != "WBuf"}
    write_checkpoint(tmp_path / "c.res", archive, plan, state, {})
    with open_checkpoint(tmp_path / "c.res") as checkpoint, pytest.raises(InputError, match="where the weights are"):
        checkpoint.raw_weights()


def test_a_block_without_a_label_is_state_under_its_pass() -> None:
    """By the same name on the device and in the file."""
    plan = reference_plan()
    index, item = next((n, item) for n, item in enumerate(plan.passes) if item.uniform and item.uniform.dump)
    assert item.uniform is not None
    passes = [*plan.passes]
    passes[index] = replace(item, uniform=replace(item.uniform, label=""))
    plan = replace(plan, passes=tuple(passes))
    blocks = {index: np.zeros((), [("epoch", "<u4")])}
    engine = SimpleNamespace(read=lambda key: b"", write=lambda key, content: None, uniform=blocks.__getitem__)
    state = read_state(engine, plan)  # type: ignore[arg-type]
    assert {entry.label for entry in state_entries(plan)} == {*state}
    write_state(engine, plan, {**state, f"{index}-u": b"\7\0\0\0"})  # type: ignore[arg-type]
    assert blocks[index]["epoch"] == 7
