"""Cook, run and render as a person would: the figures and pictures that come out are what they claim to be."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from oracle.model import forward
from workspace import SMALL, SMALL_SIZE, TINY, Workspace, photograph


@pytest.fixture(scope="module")
def finished(driver: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, dict[str, object]]:
    """A short run, and the summary that ``--json`` printed."""
    place = Workspace(tmp_path_factory.mktemp("product"), driver)
    place.cook(photograph(*SMALL_SIZE), **SMALL)
    return place, json.loads(place.run(60, "--json").stdout)


def levels(picture: np.ndarray) -> np.ndarray:
    return np.rint(np.clip(picture, 0, 1) * 255)


def draw(place: Workspace, scale: int) -> np.ndarray:
    place.convtrain("render", place.model, "-o", "drawn.png", "--scale", scale)
    return np.asarray(Image.open(place.folder / "drawn.png")).astype(np.float64)


def test_the_reported_figures_are_those_of_the_picture(finished: tuple[Workspace, dict[str, object]]) -> None:
    place, summary = finished
    drawn, target = np.asarray(Image.open(place.picture)) / 255.0, photograph(*SMALL_SIZE) / 255.0
    psnr = -10 * np.log10(np.mean((drawn - target) ** 2))
    for metrics in (summary["metrics"], place.info(place.model)["metrics"]):
        assert metrics["epoch"] == 60
        assert metrics["psnr_u8"] == pytest.approx(psnr, abs=1e-6)
        exact = forward(place.weights(place.model), place.config())
        assert metrics["psnr"] == pytest.approx(-10 * np.log10(np.mean((exact - target) ** 2)), abs=1e-3)
    assert psnr > 15


def test_a_render_at_1x_is_the_picture(finished: tuple[Workspace, dict[str, object]]) -> None:
    place, _ = finished
    np.testing.assert_array_equal(draw(place, 1), np.asarray(Image.open(place.picture)))


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_a_larger_render_samples_between_the_pixels(scale: int, finished: tuple[Workspace, dict[str, object]]) -> None:
    place, _ = finished
    weights, config, drawn = place.weights(place.model), place.config(), draw(place, scale)
    assert drawn.shape == (SMALL_SIZE[1] * scale, SMALL_SIZE[0] * scale, 3)
    for b in range(scale):
        for a in range(scale):
            offset = (a + 0.5) / scale - 0.5, (b + 0.5) / scale - 0.5
            expected = levels(forward(weights, config, offset))
            assert np.abs(drawn[b::scale, a::scale] - expected).max() <= 1  # a level, where rounding is a tie
    if scale % 2:
        middle = drawn[scale // 2 :: scale, scale // 2 :: scale]
        np.testing.assert_array_equal(middle, np.asarray(Image.open(place.picture)))


def test_a_render_needs_nothing_but_the_model(cooked: Workspace) -> None:
    cooked.run(2)
    expected = cooked.picture.read_bytes()
    cooked.archive.unlink()
    cooked.checkpoint.unlink()
    cooked.convtrain("render", cooked.model, "-o", "drawn.png")
    assert (cooked.folder / "drawn.png").read_bytes() == expected


def test_the_seed_preset(workspace: Workspace) -> None:
    workspace.convtrain("cook", "--preset", "seed")
    info = workspace.info(workspace.archive)
    passes = info["plans"]["reference"]
    assert [item["index"] for item in passes] == list(range(81))
    assert [item["index"] for item in passes if item["infer"]] == list(range(19))
    names = [passes[index]["name"] for index in (0, 1, 2, 5, 18, 19, 22, 24, 60, 61, 62, 78, 79, 80)]
    expected = "kern stem_train dw mix_unpack head lossgrad bwd_head_x bwd_sin_dm bwd_stem upd muon_prep muon_apply"
    assert names == [*expected.split(), "wavg_acc", "wavg_apply"]
    assert info["weights"]["count"] == 134_320
    assert [slot["shape"] for slot in info["weights"]["slots"]][-3:] == [[256, 128], [3, 128], [3]]
    groups = [item["group"] for item in passes]
    assert groups == sorted(groups, key=["forward", "loss", "backward", "update", "average"].index)


def test_the_number_of_passes_follows_the_layers(workspace: Workspace) -> None:
    for layers in (1, 2, 3):
        workspace.cook(photograph(5, 4), "--force", **{**TINY, "layers": layers})
        assert len(workspace.info(workspace.archive)["plans"]["reference"]) == 29 + 13 * layers
