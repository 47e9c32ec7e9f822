"""Outputs are refused before anything is written: those that cannot be, and those that would destroy something."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from convtrain.cli.app import main
from convtrain.errors import InputError
from convtrain.files.outputs import check_distinct, check_outputs
from toy_resources import make_all


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_new_and_replaceable_files_are_accepted_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "old.png").write_bytes(b"picture")
    (tmp_path / "link.png").symlink_to(tmp_path / "far.png")
    check_outputs([tmp_path / "new" / "er" / "a.npz", tmp_path / "old.png", tmp_path / "link.png"], [tmp_path / "in"])
    assert snapshot(tmp_path) == {"old.png": b"picture"}
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["folder", "pipe", "file/below.npz", "x" * 256, "new/" + "x" * 256, "loop"])
def test_what_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="Cannot write"):
        check_outputs([tmp_path / name])


@pytest.mark.parametrize("place", ["/dev/null", "/proc/out.png"])
def test_devices_and_special_file_systems_are_refused(place: str) -> None:
    with pytest.raises(InputError, match="Cannot write"):
        check_outputs([Path(place)])


def test_the_same_file_by_another_path_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "symbolic").symlink_to("a")
    (tmp_path / "hard").hardlink_to(tmp_path / "a")
    for other in ("folder/../a", "symbolic", "hard"):
        with pytest.raises(InputError, match="the same file"):
            check_distinct([tmp_path / other], [tmp_path / "a"])
    with pytest.raises(InputError, match="the same file"):
        check_distinct([tmp_path / "new", tmp_path / "folder" / ".." / "new"])
    check_distinct([tmp_path / "a", tmp_path / "new"], [tmp_path / "folder"])


def test_resource_files_are_not_replaced_by_other_formats(tmp_path: Path) -> None:
    for path in make_all(tmp_path).values():
        with pytest.raises(InputError, match="resource file"):
            check_outputs([path])


def test_no_command_replaces_its_input_or_its_own_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {kind: str(path) for kind, path in make_all(tmp_path).items()}
    picture = tmp_path / "train.res"
    new, model, taken = str(tmp_path / "new"), files["model"], str(tmp_path / "picture.png")
    Path(taken).symlink_to(model)
    before = snapshot(tmp_path)
    for arguments, reason in (
        (["render", model, "-o", taken], "the same file"),
        (["render", model, "-o", model], ".png"),
        (["render", model, "-o", new + ".jpg"], ".png"),
        (["export", model, "--npz", model], "the same file"),
        (["export", model, "--safetensors", files["checkpoint"]], "resource file"),
        (["export", model, "--npz", new, "--safetensors", new], "the same file"),
        (["export", model, "--npz", new, "--unpack", new], "the same file"),
        (["export", model, "--npz", new, "--unpack", model], "the same file"),
        (["cook", str(picture), "--out", str(tmp_path)], "the same file"),
    ):
        assert main(arguments) == 2, arguments
        printed = capsys.readouterr().err
        assert reason in printed
        assert printed.count("\n") == 1
    assert snapshot(tmp_path) == before
