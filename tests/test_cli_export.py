"""``convtrain export``: weights by slot name, and every content as a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from convtrain.cli.app import main
from convtrain.files.container import sha256, write_container
from convtrain.files.tensors import write_npz, write_safetensors
from toy_resources import archive_parts, averaged_weights, make_all, make_state, seed_weights, shader, target

WEIGHTS = {"training": seed_weights(), "checkpoint": make_state()["WBuf"], "model": averaged_weights()}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return make_all(tmp_path)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_by_slot(files: dict[str, Path], tmp_path: Path, kind: str) -> None:
    npz, safetensors = tmp_path / "new" / "w.npz", tmp_path / "w.safetensors"
    assert main(["export", str(files[kind]), "--npz", str(npz), "--safetensors", str(safetensors)]) == 0
    flat = np.frombuffer(WEIGHTS[kind], "<f4")
    expected = {"mix.0": flat[:6].reshape(2, 3), "head.b": flat[8:11]}
    with np.load(npz) as found:
        assert set(found) == set(expected)
        for name, tensor in expected.items():
            assert found[name].dtype == np.float32
            np.testing.assert_array_equal(found[name], tensor)
    tensors = load_file(safetensors)
    assert set(tensors) == set(expected)
    for name, tensor in expected.items():
        assert tensors[name].dtype == np.float32
        np.testing.assert_array_equal(tensors[name], tensor)


@pytest.mark.parametrize("option", ["--npz", "--safetensors"])
def test_the_same_weights_give_the_same_bytes(files: dict[str, Path], tmp_path: Path, option: str) -> None:
    for name in ("a", "b"):
        assert main(["export", str(files["model"]), option, str(tmp_path / name)]) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_tensor_formats_take_any_name_and_shape(tmp_path: Path) -> None:
    tensors = {
        "file": np.float32(3).reshape(()),
        "größe": np.arange(6, dtype=np.float32).reshape(1, 2, 3)[:, :, ::-1],
        "last": np.ones(1, np.float32),
    }
    with open(tmp_path / "a.npz", "wb") as file:
        write_npz(file, tensors)
    with open(tmp_path / "a.safetensors", "wb") as file:
        write_safetensors(file, tensors)
    for found in (np.load(tmp_path / "a.npz"), load_file(tmp_path / "a.safetensors")):
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(found[name], tensor)
            assert found[name].shape == tensor.shape


def test_unpacking_an_archive(files: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"
    assert main(["export", str(files["training"]), "--unpack", str(folder)]) == 0
    reference = [
        f"reference/{name}-{kind}.spv" for name in ("0-stem", "1-head", "2-lossgrad", "3-upd") for kind in "ab"
    ]
    fused = [f"fused/{name}-{kind}.spv" for name in ("0-upd", "1-all", "2-lossgrad") for kind in "ab"]
    assert names(folder) == sorted(["manifest.json", "weights.bin", "target.bin", *reference, *fused])
    assert (folder / "reference" / "1-head-b.spv").read_bytes() == shader("head b")
    assert (folder / "weights.bin").read_bytes() == seed_weights()
    assert (folder / "target.bin").read_bytes() == target()
    assert json.loads((folder / "manifest.json").read_text())["compiler"] == "toy-1"
    assert names(folder.parent) == [f"out/{name}" for name in names(folder)]


def test_unpacking_a_checkpoint(files: dict[str, Path], tmp_path: Path) -> None:
    assert main(["export", str(files["checkpoint"]), "--unpack", str(tmp_path / "out")]) == 0
    assert names(tmp_path / "out") == ["0-0.bin", "3-2.bin", "3-u.bin", "manifest.json"]
    assert (tmp_path / "out" / "3-u.bin").read_bytes() == make_state()["state"]


def test_unpacking_a_model(files: dict[str, Path], tmp_path: Path) -> None:
    assert main(["export", str(files["model"]), "--unpack", str(tmp_path / "out")]) == 0
    shaders = [f"reference/{name}-{kind}.spv" for name in ("0-stem", "1-head") for kind in "ab"]
    assert names(tmp_path / "out") == sorted(
        ["fused/0-all-a.spv", "fused/0-all-b.spv", "manifest.json", "weights.bin", *shaders]
    )
    assert (tmp_path / "out" / "weights.bin").read_bytes() == averaged_weights()


def test_unpacking_fills_an_empty_folder_and_no_other(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    assert main(["export", str(files["model"]), "--unpack", str(folder)]) == 0
    before = names(folder)
    assert main(["export", str(files["training"]), "--unpack", str(folder)]) == 2
    assert "not an empty folder" in capsys.readouterr().err
    assert names(folder) == before
    assert main(["export", str(files["training"]), "--unpack", str(files["model"])]) == 2
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    assert main(["export", str(files["training"]), "--unpack", str(tmp_path / "link")]) == 2


def test_unpacked_names_never_leave_the_folder(tmp_path: Path) -> None:
    manifest, blobs = archive_parts()
    extra = {sha256(name.encode()): name.encode() for name in ("one", "two", "unnamed")}
    manifest["seeds"] |= {"../../up": sha256(b"one"), ".._.._up": sha256(b"two"), "": sha256(b"one")}
    for variant, name in zip(manifest["plans"]["reference"]["passes"][0]["variants"], ("/etc/x", ".."), strict=True):
        variant["name"] = name
    write_container(tmp_path / "train.res", "training", manifest, {**blobs, **extra})
    folder = tmp_path / "deep" / "er" / "out"
    assert main(["export", str(tmp_path / "train.res"), "--unpack", str(folder)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "train.res"]
    assert [path.name for path in folder.parent.iterdir()] == ["out"]
    contents = {(folder / name).read_bytes() for name in names(folder)}
    assert {b"one", b"two", b"unnamed"} <= contents
    assert (folder / f"{sha256(b'unnamed')}.bin").read_bytes() == b"unnamed"


@pytest.mark.parametrize("option", ["--npz", "--safetensors", "--unpack"])
def test_outputs_that_cannot_be_written(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    before = names(tmp_path)
    for place in (files["model"] / "below", Path("/proc/out"), tmp_path if option != "--unpack" else files["model"]):
        assert main(["export", str(files["model"]), option, str(place)]) == 2
        printed = capsys.readouterr()
        assert printed.err.count("\n") == 1
    assert names(tmp_path) == before


def test_no_output_given(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(files["model"])]) == 2
    assert "--npz, --safetensors or --unpack" in capsys.readouterr().err
