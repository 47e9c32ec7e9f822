"""``convtrain info``: everything as JSON, and tables for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from convtrain.cli.app import main
from convtrain.files.container import sha256
from convtrain.report.contents import show
from toy_resources import COUNT, METRICS, SCHEDULE, SLOTS, make_all, target


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return make_all(tmp_path)


def info(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["info", str(path), "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    found: dict[str, Any] = json.loads(printed.out)
    return found


KINDS = ["training", "checkpoint", "model"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_every_kind_has(files: dict[str, Path], capsys: pytest.CaptureFixture[str], kind: str) -> None:
    found = info(files[kind], capsys)
    assert found["kind"] == kind
    assert found["config"] == {"height": 3, "width": 3, "nf": 8, "lr": 2e-3, **SCHEDULE}
    assert found["weights"] == {"count": COUNT, "slots": SLOTS}
    assert found["identity"] == sha256(files[kind].read_bytes())
    assert found["bytes"] == files[kind].stat().st_size
    assert {"index", "name", "group", "infer"} <= set(found["plans"]["reference"][0])
    assert found["buffers"]["reference"][0]["label"] == "WBuf"
    hashes = [blob["sha256"] for blob in found["blobs"]]
    assert hashes == sorted(set(hashes))


def test_a_training_archive(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = info(files["training"], capsys)
    passes = found["plans"]["reference"]
    assert [(item["index"], item["name"], item["group"], item["infer"]) for item in passes] == [
        (0, "stem", "forward", True),
        (1, "head", "forward", True),
        (2, "lossgrad", "loss", False),
        (3, "upd", "update", False),
    ]
    assert [variant["name"] for variant in passes[0]["variants"]] == ["a", "b"]
    assert list(found["plans"]) == ["reference", "fused"]
    assert found["seeds"]["target"] == sha256(target())
    assert found["compiler"] == "toy-1"
    assert "metrics" not in found


def test_a_checkpoint(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = info(files["checkpoint"], capsys)
    assert found["metrics"] == METRICS
    assert set(found["entries"]) == {"0-0.bin", "3-2.bin", "3-u.bin"}
    assert found["archive"] == sha256(files["training"].read_bytes())
    assert list(found["plans"]) == ["reference"]


def test_a_checkpoint_needs_no_archive(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    files["training"].unlink()
    assert info(files["checkpoint"], capsys)["metrics"] == METRICS


def test_a_model_package(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = info(files["model"], capsys)
    assert found["metrics"] == METRICS
    assert found["image"] == {"height": 3, "width": 3, "channels": 3}
    assert "Pixel centres" in found["coordinates"]
    assert all(item["infer"] for passes in found["plans"].values() for item in passes)


@pytest.mark.parametrize("kind", KINDS)
def test_tables(files: dict[str, Path], capsys: pytest.CaptureFixture[str], kind: str) -> None:
    assert main(["info", str(files[kind])]) == 0
    printed = capsys.readouterr().out
    words = ["12 weights", "mix.0", "2×3", "WBuf", "stem", "nf 8", sha256(files[kind].read_bytes())]
    words += ["psnr 21.5"] if kind != "training" else ["compiler toy-1", "plan fused: 3 passes"]
    for word in words:
        assert word in printed, word
    assert all(line == line.rstrip() for line in printed.splitlines())


def test_nested_configuration_reads_like_the_rest(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = info(files["training"], capsys)
    found["config"] = {"lr": 0.002, "image": {"name": "cat.png", "sha256": "12ab"}}
    show(found)
    assert "lr 0.002, image (name cat.png, sha256 12ab)\n" in capsys.readouterr().out


def test_damage_is_one_sentence(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(files["model"].read_bytes())
    data[len(data) // 2] ^= 0x10
    files["model"].write_bytes(data)
    assert main(["info", str(files["model"]), "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "is damaged: its checksum" in printed.err
