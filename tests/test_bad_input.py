"""Every mistake ends in a plain sentence and exit code 2, with nothing written and nothing lost."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from convtrain.files.container import open_container, write_container
from workspace import TINY, Workspace, command, environment, photograph


def tree(folder: Path) -> dict[str, bytes]:
    """Every file under a folder; lock files and pipeline caches hold nothing of a person's."""
    ours = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in ours
        if path.suffix != ".lock" and "pipelines" not in path.parts and path.name != ".lock"
    }


def refused(
    place: Workspace,
    *arguments: str | Path,
    says: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
) -> None:
    """Demand that this command is refused with plain words and leaves every file as it was."""
    before = tree(place.folder)
    err = place.convtrain(*arguments, env=env, code=2).stderr
    assert tree(place.folder) == before
    assert "Traceback" not in err
    lines = err.strip().splitlines()
    assert 1 <= len(lines) <= 3, err
    for word in says:
        assert word in err, err


@pytest.fixture
def trained(cooked: Workspace) -> Workspace:
    cooked.run(2)
    return cooked


def test_no_such_picture(workspace: Workspace) -> None:
    refused(workspace, "cook", "missing.png", says=("missing.png",))


def test_not_a_picture(workspace: Workspace) -> None:
    (workspace.folder / "notes.jpg").write_text("milk, eggs")
    refused(workspace, "cook", "notes.jpg", says=("notes.jpg",))


def test_a_truncated_picture(workspace: Workspace) -> None:
    whole, half = workspace.folder / "whole.png", workspace.folder / "half.png"
    Image.fromarray(photograph(64, 64)).save(whole)
    half.write_bytes(whole.read_bytes()[:4000])
    refused(workspace, "cook", "half.png", says=("half.png",))


def test_a_folder_as_picture(workspace: Workspace) -> None:
    refused(workspace, "cook", ".")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--preset", "huge"], "huge"),
        (["--set", "colour=3"], "colour"),
        (["--set", "nf=7"], "7"),
        (["--set", "nf=many"], "many"),
        (["--set", "nf"], "nf"),
        (["--set", "ks=4"], "4"),
        (["--set", "layers=0"], "layers"),
        (["--set", "lr=nan"], "lr"),
        (["--set", "lr=1e-40"], "lr must be within the range"),
        (["--set", "nf=8_0"], "8_0"),
        (["--set", "nf=\N{FULLWIDTH DIGIT EIGHT}"], "whole number"),
        (["--set", "ks=33"], "ks must be at most 31"),
        (["--out", ""], "empty"),
        (["--size", "12"], "12"),
        (["--size", "0x5"], "0"),
        (["--seed", "-1"], "-1"),
        (["--out", "/proc/convtrain"], "/proc/convtrain"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_cook_refuses(arguments: list[str], says: str, workspace: Workspace) -> None:
    Image.fromarray(photograph(12, 12)).save(workspace.folder / "photo.png")
    refused(workspace, "cook", "photo.png", *arguments, says=(says,))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-3"], "-3"),
        (["ten"], "ten"),
        (["2.5"], "2.5"),
        (["--until", "-1"], "-1"),
        (["1", "--device", "Voodoo 2"], "Voodoo 2"),
        (["1", "--device", "99"], "99"),
        (["1", "--plan", "magic"], "magic"),
        (["1", "--dump", "Nothing=x.npy"], "Nothing"),
        (["1", "--dump", "GW"], "GW"),
        (["1", "--dump", "GW=res_train/.lock"], ".lock"),
        (["1", "--dump", "GW=res_train/checkpoint.res"], "checkpoint.res"),
        (["1", "--checkpoint-every", "-2"], "-2"),
        (["1", "--out", "/proc/convtrain"], "/proc/convtrain"),
        (["1", "--res", "elsewhere"], "elsewhere"),
        (["1", "--res", ""], "empty"),
        (["1", "--out", ""], "empty"),
        (["1", "--frobnicate"], "--frobnicate"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_run_refuses(arguments: list[str], says: str, trained: Workspace) -> None:
    refused(trained, "run", *arguments, says=(says,))


@pytest.mark.parametrize(
    ("name", "value"), [("warmup", 0), ("warmup", None), ("height", 99), ("width", []), ("lr", "x")]
)
def test_a_configuration_that_cannot_be(cooked: Workspace, name: str, value: object) -> None:
    with open_container(cooked.archive) as container:
        manifest = {**container.manifest, "config": {**container.manifest["config"], name: value}}
        blobs = {blob: container.blob(blob) for blob in container.blobs}
        write_container(cooked.archive, "training", manifest, blobs)
    refused(cooked, "run", "1", says=("train.res", "configuration"))


def link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize(
    ("where", "target", "says"),
    [
        ("res/model.res", "../res_train/train.res", "the same file"),
        ("res/model.res", "../res_train/checkpoint.res", "the same file"),
        ("res/model.res", "../other/train.res", "training"),
        ("res/model.res", "/nonexistent/model.res", "does not exist"),
        ("res/out.png", "../res_train/.cook", "the same file"),
        ("res_train/checkpoint.res", "/nonexistent/x", "does not exist"),
        ("res_train/checkpoint.res", "train.res", "train.res"),
    ],
)
def test_links_that_would_replace_what_must_stay(trained: Workspace, where: str, target: str, says: str) -> None:
    (trained.folder / "other").mkdir()
    (trained.folder / "res_train" / ".cook").touch()
    shutil.copy(trained.archive, trained.folder / "other")
    link(trained.folder / where, target)
    refused(trained, "run", "1", "--fresh", says=(where.split("/")[1], says))


@pytest.mark.parametrize("where", ["res/model.res", "res/out.png", "res_train/checkpoint.res"])
def test_what_cannot_be_written_is_noticed_before_the_first_epoch(trained: Workspace, where: str) -> None:
    path = trained.folder / where
    path.unlink()
    path.mkdir()
    refused(trained, "run", "1", "--fresh", says=(where, "a folder"))
    path.rmdir()
    os.mkfifo(path)
    refused(trained, "run", "1", "--fresh", says=(where, "not a regular file"))


def test_the_picture_that_was_cooked_is_not_replaced(workspace: Workspace) -> None:
    workspace.cook(photograph(13, 12), **TINY)
    (workspace.folder / "photo.png").rename(workspace.folder / "out.png")
    refused(workspace, "run", "1", "--out", ".", says=("out.png", "was cooked"))


def test_a_dump_does_not_replace_what_is_no_dump(trained: Workspace) -> None:
    link(trained.folder / "stamp.npy", "res_train/.cook")
    for name in ("photo.png", "stamp.npy", "res_train/spirv/x.spv"):
        refused(trained, "run", "1", "--dump", f"Out={name}", says=(name, ".npy"))


def test_a_terminal_without_columns(trained: Workspace) -> None:
    assert "PSNR" in trained.convtrain("run", "1", env={"COLUMNS": "0"}).stdout


def test_a_picture_far_from_the_image_is_remarked_on(workspace: Workspace) -> None:
    workspace.cook(photograph(13, 12), **TINY, lr=1e3, warmup=1)
    assert "diverged" in workspace.run(20, "--plan", "reference").stderr


def test_a_size_of_more_digits_than_python_reads(workspace: Workspace) -> None:
    refused(workspace, "cook", "--size", "9" * 5000 + "x5", says=("WIDTHxHEIGHT",))


def test_nstep_must_be_a_number(cooked: Workspace) -> None:
    refused(cooked, "run", env={"nStep": "some"}, says=("some",))


def test_an_archive_with_one_flipped_byte(trained: Workspace) -> None:
    whole = trained.archive.read_bytes()
    rng = random.Random(1)
    places = [0, 9, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(5))]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        trained.archive.write_bytes(damaged)
        refused(trained, "run", "1", says=("train.res",))


@pytest.mark.parametrize("length", [0, 1, 40, -1])
def test_a_truncated_archive(length: int, trained: Workspace) -> None:
    trained.archive.write_bytes(trained.archive.read_bytes()[:length])
    refused(trained, "run", "1", says=("train.res",))


def test_a_damaged_checkpoint(trained: Workspace) -> None:
    content = bytearray(trained.checkpoint.read_bytes())
    content[len(content) // 2] ^= 4
    trained.checkpoint.write_bytes(content)
    refused(trained, "run", "1", says=("checkpoint.res",))


def test_files_of_the_wrong_kind(trained: Workspace) -> None:
    refused(trained, "render", "res_train/train.res", says=("train.res",))
    refused(trained, "render", "photo.txt", says=("photo.txt",))
    shutil.copy(trained.model, trained.archive)
    refused(trained, "run", "1", says=("train.res",))


def test_a_checkpoint_of_another_archive(trained: Workspace) -> None:
    trained.cook(photograph(13, 12, seed=9), **TINY)
    refused(trained, "run", "1", says=("checkpoint.res", "--fresh"))
    trained.run(1, "--fresh")


@pytest.mark.parametrize("scale", ["0", "-2", "1.5", "big"])
def test_render_refuses_a_scale(scale: str, trained: Workspace) -> None:
    refused(trained, "render", "res/model.res", "--scale", scale, says=(scale,))


def test_render_refuses_an_output_it_cannot_write(trained: Workspace) -> None:
    refused(trained, "render", "res/model.res", "-o", "/proc/convtrain/x.png", says=("/proc/convtrain",))


def test_no_loader(trained: Workspace) -> None:
    folder = trained.folder / "lib"
    folder.mkdir()
    for name in ("libvulkan.so", "libvulkan.so.1"):
        (folder / name).touch()
    refused(trained, "run", "1", env={"LD_LIBRARY_PATH": str(folder)}, says=("libvulkan1",))


def test_no_driver(trained: Workspace) -> None:
    nothing = {"VK_DRIVER_FILES": "/nowhere.json", "VK_ICD_FILENAMES": "/nowhere.json"}
    refused(trained, "run", "1", env=nothing, says=("mesa-vulkan-drivers",))
    refused(trained, "render", "res/model.res", env=nothing, says=("mesa-vulkan-drivers",))


def test_a_second_run_in_the_same_folder(cooked: Workspace) -> None:
    first = cooked.start("run", 100_000, "--checkpoint-every", 1)
    try:
        while not cooked.checkpoint.exists():
            assert first.poll() is None
        err = cooked.convtrain("run", "1", code=2).stderr
        assert "res_train" in err
        assert first.poll() is None
    finally:
        first.terminate()
        first.communicate()


def test_a_full_disk_keeps_the_old_checkpoint(trained: Workspace) -> None:
    """A limit on file sizes stands in for the full disk: both fail in the middle of a write."""
    before = trained.checkpoint.read_bytes()

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, resource.RLIM_INFINITY))

    done = subprocess.run(
        command("run", 1), cwd=trained.folder, env=environment(), capture_output=True, text=True, preexec_fn=limit
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "checkpoint.res" in done.stderr
    assert trained.checkpoint.read_bytes() == before
    trained.run(1)


def test_a_picture_that_is_not_finite_replaces_nothing(workspace: Workspace) -> None:
    """Weights can be finite and yet so large that the picture is not."""
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3)).astype(np.uint8)
    workspace.cook(noise, nf=8, layers=2, ks=3, kn=4, lr=1e10, warmup=1)
    kept = b"of an earlier training"
    (workspace.folder / "res").mkdir(exist_ok=True)
    (workspace.folder / "res" / "model.res").write_bytes(kept)
    err = workspace.convtrain("run", 5, "--plan", "reference", code=1).stderr
    assert "diverged" in err
    assert "Traceback" not in err
    assert (workspace.folder / "res" / "model.res").read_bytes() == kept


def test_a_picture_too_large_for_the_device(workspace: Workspace) -> None:
    devices = workspace.convtrain("devices", "--json").stdout
    if '"cpu"' not in devices and "llvmpipe" not in devices:
        pytest.skip("this device takes large pictures")
    workspace.cook(np.zeros((600, 600, 3), np.uint8), "--preset=seed", nf=96)
    refused(workspace, "run", "1", says=("bytes",))


def test_the_traceback_is_there_for_those_who_ask(workspace: Workspace) -> None:
    err = workspace.convtrain("cook", "missing.png", env={"CONVTRAIN_DEBUG": "1"}, code=2).stderr
    assert "Traceback" in err


def test_help_costs_nothing(make_cooked: Callable[[str], Workspace]) -> None:
    assert "render" in make_cooked("help").convtrain("--help").stdout
