"""SSIM on the device and on the host against scikit-image."""

from __future__ import annotations

import numpy as np
import pytest
from skimage.metrics import structural_similarity

from convtrain.train.metrics import ssim
from workspace import Workspace, photograph


def reference(picture: np.ndarray, target: np.ndarray) -> float:
    """Gaussian weights, population covariance, mean over the valid region."""
    _, full = structural_similarity(
        picture.astype(np.float64), target, win_size=11, gaussian_weights=True, sigma=1.5,
        use_sample_covariance=False, data_range=1.0, channel_axis=2, full=True,
    )  # fmt: skip
    return float(full[5:-5, 5:-5].mean())


@pytest.mark.parametrize(("width", "height"), [(11, 20), (17, 14)])
def test_the_loss_passes(width: int, height: int, workspace: Workspace, driver: dict[str, str]) -> None:
    workspace.env, workspace.plan = driver, "reference"
    picture = photograph(width, height)
    picture[: height // 2, : width // 2] = 128  # a flat corner: variances there are rounding errors
    workspace.cook(picture, nf=8, layers=1, ks=3, kn=4)
    workspace.run(20)
    found = workspace.dump(1, "Out", "loss")
    assert found["loss"][4] == pytest.approx(reference(found["Out"], picture / 255.0), abs=1e-5)


def test_the_reported_figure() -> None:
    rng = np.random.default_rng(3)
    target = photograph(40, 30) / 255.0
    picture = target + rng.normal(scale=0.05, size=target.shape)
    assert ssim(picture, target) == pytest.approx(reference(picture, target), abs=1e-10)


def test_a_small_picture_has_none() -> None:
    small = photograph(10, 30) / 255.0
    assert ssim(small, small) is None
