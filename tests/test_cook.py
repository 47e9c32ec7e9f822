"""The whole cook with a toy recipe: same bytes, nothing done twice, nothing half done."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import toy_recipe
from convtrain.cli.app import main
from convtrain.errors import ConvtrainError, InputError, RunError
from convtrain.files.archive import open_archive
from convtrain.files.checkpoint import state_entries, write_checkpoint
from convtrain.files.lock import folder_lock
from convtrain.graph.builder import Graph, Kernel, UniformSpec, share
from cook import build, registry
from cook.build import CookOptions, CookResult, cook
from cook.image import PACKAGED
from cook.model import ModelConfig
from cook.registry import Recipe
from cook.seeds import draw_weights
from privileges import bound_by_permissions

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = toy_recipe.write_sources(tmp_path / "slang")
    monkeypatch.setattr(build, "slang_root", lambda: folder)
    monkeypatch.setattr(build, "find_recipe", lambda name: toy_recipe.build)
    return folder


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(3).integers(0, 256, (24, 40, 3), dtype=np.uint8)).save(path)
    return path


def run(out: Path, image: Path | None, **options: object) -> CookResult:
    return cook(CookOptions(image=image, preset="cpu", out=out, **options))  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_archive_opens_and_says_what_it_is(tmp_path: Path, photo: Path) -> None:
    result = run(tmp_path / "out", photo, settings={"layers": 2}, seed=5)
    assert result.model is not None
    with open_archive(tmp_path / "out") as archive:
        config = archive.config
        assert (config["height"], config["width"], config["nf"], config["layers"]) == (24, 40, 32, 2)
        assert (config["halo"], config["seed"], config["preset"]) == (8, 5, "cpu")
        assert config["pixels"] == (24 + 16) * (40 + 16)
        assert config["image"]["name"] == "photo.png"
        assert archive.weights.count == result.model.weights
        assert [slot.name for slot in archive.weights.slots][-1] == "head.b"
        assert bytes(archive.blob(archive.seeds["weights"])) == draw_weights(result.model).tobytes()
        target = np.frombuffer(archive.blob(archive.seeds["target"]), np.float32).reshape(24, 40, 3)
        assert np.array_equal(np.rint(target * 255), np.asarray(Image.open(photo)))
        assert archive.compiler.startswith("20")
        assert list(archive.plans) == ["reference"]


def test_a_file_name_that_is_not_text(tmp_path: Path, photo: Path) -> None:
    moved = photo.rename(photo.with_name(os.fsdecode(b"\xff\xfe.png")))
    run(tmp_path / "out", moved)
    with open_archive(tmp_path / "out") as archive:
        assert archive.config["image"]["name"] == "\ufffd\ufffd.png"


def test_two_folders_get_the_same_bytes(tmp_path: Path, photo: Path) -> None:
    run(tmp_path / "a", photo)
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.copy(photo, tmp_path / "elsewhere" / photo.name)
    run(tmp_path / "b", Path(moved))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_an_unchanged_project_is_not_cooked_again(tmp_path: Path, photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "out", photo)
    before = (tmp_path / "out/train.res").stat()
    monkeypatch.setattr("cook.slang_api.load", lambda: pytest.fail("the compiler was loaded"))
    started = time.perf_counter()
    result = run(tmp_path / "out", photo)
    assert time.perf_counter() - started < 1
    assert result.packed is None
    assert (tmp_path / "out/train.res").stat() == before


def test_what_makes_it_cook_again(tmp_path: Path, photo: Path, sources: Path) -> None:
    out = tmp_path / "out"

    def compiled(**options: object) -> int | None:
        result = run(out, photo, **options)
        return None if result.packed is None else result.packed.compiled

    assert compiled() == 2
    assert compiled() is None
    assert compiled(force=True) == 0
    assert compiled(seed=1) == 0
    assert compiled(settings={"lambda_c": 0.5}) == 1
    assert compiled(size=(20, 12)) == 1
    (sources / "helpers.slang").write_text("float twice(float x) { return x + x; }\n")
    assert compiled() == 1
    assert compiled() is None
    photo.write_bytes(photo.read_bytes() + b"\0")
    assert compiled() == 0
    (out / "train.res").write_bytes(b"damaged")
    assert compiled() == 0
    (out / ".cook").unlink()
    assert compiled() == 0
    (out / ".cook").write_text("[" * 100_000)
    assert compiled() == 0
    shutil.rmtree(out / "spirv")
    assert compiled() is None
    assert compiled(force=True) == 2


def test_the_stamp_is_written_last(tmp_path: Path, photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(build, "write_stamp", fail)
        with pytest.raises(KeyboardInterrupt):
            run(out, photo)
    assert (out / "train.res").exists()
    assert not (out / ".cook").exists()
    assert run(out, photo).packed is not None


def test_a_failed_write_keeps_the_old_archive(tmp_path: Path, photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    run(out, photo)
    before = contents(out)

    def full(*_: object, **__: object) -> str:
        raise RunError("no space")

    monkeypatch.setattr(build, "write_container", full)
    with pytest.raises(RunError):
        run(out, photo, seed=9)
    assert contents(out) == before


def test_bad_input_writes_nothing(tmp_path: Path, photo: Path, sources: Path) -> None:
    out = tmp_path / "out"
    cut = tmp_path / "cut.png"
    cut.write_bytes(photo.read_bytes()[:500])
    for options in (
        {"image": tmp_path / "none.png"},
        {"image": cut},
        {"image": photo, "settings": {"nf": 7}},
        {"image": photo, "settings": {"ks": 4}},
        {"image": photo, "preset": "huge"},
    ):
        with pytest.raises(InputError):
            cook(CookOptions(out=out, **{"preset": "cpu", **options}))  # type: ignore[arg-type]
    assert not out.exists()
    (sources / "scale.slang").write_text("nonsense")
    with pytest.raises(InputError):
        run(out, photo)
    assert not (out / "train.res").exists()


def test_output_folder_that_is_a_file_or_below_one(tmp_path: Path, photo: Path) -> None:
    for out in (photo, photo / "below"):
        with pytest.raises(InputError, match=r"photo\.png"):
            run(out, photo)


def test_output_folder_without_permission(tmp_path: Path, photo: Path) -> None:
    out = tmp_path / "out"
    out.mkdir(mode=0o500)
    with bound_by_permissions(), pytest.raises(InputError, match="writable"):
        run(out, photo)


def test_a_folder_in_use_is_left_alone(tmp_path: Path, photo: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with folder_lock(out), pytest.raises(ConvtrainError, match="Another convtrain"):
        run(out, photo)


def test_what_was_done_to_the_image_is_said(tmp_path: Path) -> None:
    heard: list[str] = []
    cook(CookOptions(preset="cpu", out=tmp_path / "out"), heard.append)
    assert heard == [
        "astronaut.png was resized from 512x512 to 128x128 (Lanczos), the preset's size; --size 512x512 keeps its own."
    ]
    with open_archive(tmp_path / "out") as archive:
        assert archive.config["image"]["name"] == PACKAGED.name


def test_a_checkpoint_of_the_old_archive_is_mentioned(tmp_path: Path, photo: Path) -> None:
    out = tmp_path / "out"
    run(out, photo)
    with open_archive(out) as archive:
        plan = archive.plans["reference"]
        state = {item.label: bytes(item.nbytes) for item in state_entries(plan)}
        write_checkpoint(out / "checkpoint.res", archive, plan, state, {})
    heard: list[str] = []
    cook(CookOptions(image=photo, preset="cpu", out=out, force=True), heard.append)
    assert heard == []
    cook(CookOptions(image=photo, preset="cpu", out=out, seed=2), heard.append)
    assert len(heard) == 1
    assert "--fresh" in heard[0]
    cook(CookOptions(image=photo, preset="cpu", out=out), heard.append)
    assert len(heard) == 1, "the first archive is back, and the checkpoint fits it"


def test_command_line(tmp_path: Path, photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert main(["cook", str(photo), "--preset", "cpu", "--set", "nf=8", "--set", "lr=1e-3", "--out", out]) == 0
    assert "40x24" in capsys.readouterr().out
    assert main(["cook", str(photo), "--preset", "cpu", "--set", "lr=0.001", "--set", "nf=8", "--out", out]) == 0
    assert "up to date" in capsys.readouterr().out
    assert main(["cook", str(photo), "--preset", "cpu", "--size", "8x8", "--seed", "3", "--force", "--out", out]) == 0
    with open_archive(tmp_path / "out") as archive:
        assert (archive.config["width"], archive.config["seed"]) == (8, 3)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["gone.png"], "no file gone.png"),
        (["--preset", "tiny"], "no preset 'tiny'"),
        (["--set", "nf=7"], "nf must be a multiple of 8"),
        (["--set", "ks=4"], "ks must be odd"),
        (["--set", "colour=1"], "no setting 'colour'"),
        (["--size", "12"], "--size takes"),
        (["--seed", "x"], "--seed"),
        (["--seed", "-1"], "seed must be at least 0"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_bad_command_lines(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    preset = [] if "--preset" in arguments else ["--preset", "cpu"]
    assert main(["cook", *arguments, *preset, "--out", str(out)]) == 2
    message = capsys.readouterr().err
    assert complaint in message
    assert message.count("\n") == 1
    assert not out.exists()


def test_auto_preset_without_vulkan_is_cpu(tmp_path: Path, photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> list[object]:
        raise InputError("no loader")

    monkeypatch.setattr("convtrain.gpu.live.instance.list_devices", none)
    assert main(["cook", str(photo), "--out", str(tmp_path / "out")]) == 0
    with open_archive(tmp_path / "out") as archive:
        assert archive.config["preset"] == "cpu"


@pytest.mark.parametrize(("kinds", "preset"), [(["cpu"], "cpu"), (["cpu", "discrete"], "seed"), ([], "cpu")])
def test_auto_preset_follows_the_devices(
    kinds: list[str], preset: str, tmp_path: Path, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Device:
        def __init__(self, kind: str) -> None:
            self.kind = kind

    monkeypatch.setattr("convtrain.gpu.live.instance.list_devices", lambda: [Device(kind) for kind in kinds])
    assert main(["cook", str(photo), "--preset", "auto", "--out", str(tmp_path / "out")]) == 0
    with open_archive(tmp_path / "out") as archive:
        assert archive.config["preset"] == preset


def test_cooking_imports_neither_slangpy_nor_vulkan(tmp_path: Path) -> None:
    script = "import sys, cook.build; assert not {'slangpy', 'vulkan', 'convtrain.gpu'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def changed(index: int, port: int | None = None, **changes: object) -> Recipe:
    """The toy recipe with another fact of one pass, or of one of its ports."""

    def make(model: ModelConfig) -> list[Graph]:
        (graph,) = toy_recipe.build(model)
        item = graph.passes[index]
        if port is None:
            graph.passes[index] = replace(item, **changes)  # type: ignore[arg-type]
        else:
            edited = [replace(spec, **changes) if spec.number == port else spec for spec in item.ports]  # type: ignore[arg-type]
            graph.passes[index] = replace(item, ports=tuple(edited))
        return [graph]

    return make


def state(**changes: object) -> UniformSpec:
    return UniformSpec(**{"controls": {"lr": "lr"}, "dump": True, "label": "state", **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("recipe", "complaint"),
    [
        (changed(0, nbytes=1.5), "pass 0 scale: its nbytes has the wrong type"),
        (changed(0, group=None), "pass 0 scale: its group has the wrong type"),
        (changed(1, name=5), "pass 1 5: its name has the wrong type"),
        (changed(0, 1, elements=960.0), "buffer Out: its elements has the wrong type"),
        (changed(0, 1, dtype="f64"), "buffer 0-1 has no usable size or type"),
        (changed(0, 1, shape=(3,)), r"buffer Out: it has 2880 elements, and the shape \(3,\)"),
        (changed(1, 3, dtype="store"), "a seed needs an element type"),
        (changed(0, 1, dtype="store", dump=True), "state buffer Out needs an element type"),
        (changed(1, 3, elements=7), "buffer WBuf: its seed has .* bytes, and its 7 elements have 28"),
        (changed(0, infer=False), "reads scaled, which none writes"),
        (changed(1, uniform=state(label="WBuf")), "two buffers or uniform blocks are called WBuf"),
        (changed(1, uniform=state(label="")), "nothing is called state"),
        (changed(1, uniform=state(initial={"lr": "x"})), "pass 1 update: its uniform has the wrong type"),
        (changed(1, uniform=state(initial={"lr": float("nan")})), "first value of its field lr is not a finite"),
        (changed(1, uniform=state(initial={"epoch": -1})), "first value -1 does not fit its field epoch"),
        (lambda model: [], "must return a list of graphs"),
        (lambda model: None, r"test_cook\.py:\d+\) must return a list of graphs"),
        (lambda model: Kernel("a.slang", groups=1), r"test_cook\.py:\d+: kernel a\.slang: 1 is no triple"),
        (lambda model: Kernel("a.slang", groups=(1, 1)), "is no triple"),
        (lambda model: 1 / 0, r"test_cook\.py:\d+: ZeroDivisionError"),
        (
            lambda model: Graph("a").add("b", Kernel("c", groups=(1, 1, 1)), group="", ports=[share(0, "d", "READ")]),
            r"test_cook\.py:\d+: pass 0 b, port 0 d: its access is 'READ'",
        ),
    ],
)
def test_a_recipe_that_is_wrong_replaces_no_archive(
    recipe: Recipe, complaint: str, tmp_path: Path, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "out", photo)
    before = (tmp_path / "out" / "train.res").read_bytes()
    monkeypatch.setattr(build, "find_recipe", lambda name: recipe)
    with pytest.raises(InputError, match=complaint):
        run(tmp_path / "out", photo, force=True)
    assert (tmp_path / "out" / "train.res").read_bytes() == before


def test_a_recipe_that_is_not_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def build(model):\n    return [\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(registry._MODULES, "mine", "mine")
    with pytest.raises(InputError, match=r"mine\.py:2 is not Python"):
        registry.find_recipe("mine")
