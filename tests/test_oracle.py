"""The oracle judged by itself: finite differences, published values, other libraries. No device is involved."""

from __future__ import annotations

import numpy as np
import pytest
from skimage.data import astronaut
from skimage.metrics import structural_similarity

from oracle.gradient import loss_and_gradient, loss_of_weights, output_gradient
from oracle.layout import Config, count, random_weights, slots
from oracle.loss import gradient_energy, ssim, terms
from oracle.model import coordinates, depthwise, forward, kernel
from oracle.optimisers import adam, orthogonalise
from oracle.training import Schedule, Trainer

SMALL = Config(height=13, width=12, halo=3, nf=8, layers=2, ks=3, kn=4)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_the_seed_preset_has_134320_weights() -> None:
    assert count(Config(512, 512, halo=14, nf=128, layers=4, ks=7, kn=16)) == 134_320


def test_coordinates_are_pixel_centres_on_one_scale() -> None:
    xy = coordinates(Config(height=2, width=4, halo=1, nf=8, layers=1, ks=1, kn=1))
    np.testing.assert_allclose(xy[0, 0], [-1.25, -0.75, -0.25, 0.25, 0.75, 1.25])
    np.testing.assert_allclose(xy[1, :, 0], [-0.75, -0.25, 0.25, 0.75])


def test_depthwise_is_a_correlation_with_zero_outside(rng: np.random.Generator) -> None:
    from scipy.ndimage import correlate

    h = rng.normal(size=(SMALL.nf, *SMALL.domain))
    taps = rng.normal(size=(SMALL.nf, 3, 3))
    expected = [correlate(h[f], taps[f], mode="constant") for f in range(SMALL.nf)]
    np.testing.assert_allclose(depthwise(h, taps, SMALL), expected, atol=1e-12)


def test_the_kernel_of_one_tap_ignores_its_place() -> None:
    config = Config(3, 3, halo=0, nf=8, layers=1, ks=1, kn=2)
    w = {"kern.w1": np.ones((2, 2)), "kern.b1": np.zeros(2), "kern.w2": np.ones((8, 2)), "kern.b2": np.arange(8.0)}
    np.testing.assert_allclose(kernel(w, config)[:, 0, 0], np.arange(8.0))


@pytest.mark.parametrize("shape", [(13, 12), (5, 7), (1, 9), (1, 1)])
def test_gradient_agrees_with_finite_differences(shape: tuple[int, int], rng: np.random.Generator) -> None:
    config = Config(*shape, halo=3, nf=8, layers=2, ks=3, kn=4)
    weights = random_weights(config, rng)
    target = rng.uniform(size=(*shape, 3))
    _, gradient = loss_and_gradient(weights, target, config)
    for slot in slots(config):
        direction = np.zeros_like(weights)
        direction[slot.span] = rng.normal(size=slot.span.stop - slot.span.start)
        h = 1e-5
        up = loss_of_weights(weights + h * direction, target, config)
        down = loss_of_weights(weights - h * direction, target, config)
        assert (up - down) / (2 * h) == pytest.approx(gradient @ direction, rel=1e-5, abs=1e-9), slot.name


def test_the_unused_rest_of_the_head_bias_has_no_gradient(rng: np.random.Generator) -> None:
    _, gradient = loss_and_gradient(random_weights(SMALL, rng), rng.uniform(size=(13, 12, 3)), SMALL)
    last = slots(SMALL)[-1]
    assert np.all(gradient[last.offset : last.offset + 3] != 0)
    assert np.all(gradient[last.offset + 3 : last.span.stop] == 0)


def test_the_weight_gradient_follows_from_the_output_gradient(rng: np.random.Generator) -> None:
    weights, target = random_weights(SMALL, rng), rng.uniform(size=(13, 12, 3))
    _, gradient = loss_and_gradient(weights, target, SMALL)
    dl_out = output_gradient(forward(weights, SMALL), target, SMALL)
    bias = slots(SMALL)[-1].offset
    np.testing.assert_allclose(gradient[bias : bias + 3], dl_out.sum(axis=(0, 1)), rtol=1e-10)


@pytest.mark.parametrize("crop", [(40, 64), (11, 30), (11, 11)])
def test_ssim_agrees_with_scikit_image(crop: tuple[int, int], rng: np.random.Generator) -> None:
    target = astronaut()[60 : 60 + crop[0], 180 : 180 + crop[1]] / 255.0
    out = np.clip(target + rng.normal(scale=0.1, size=target.shape), 0, 1)
    _, full = structural_similarity(
        out, target, win_size=11, gaussian_weights=True, sigma=1.5, use_sample_covariance=False,
        data_range=1.0, channel_axis=2, full=True,
    )  # fmt: skip
    assert float(ssim(out, target)) == pytest.approx(full[5:-5, 5:-5].mean(), abs=1e-10)


def test_an_axis_of_length_one_has_no_gradient_energy() -> None:
    ramp = np.arange(5.0)[None, :, None] * np.ones(3)
    assert float(gradient_energy(ramp)) == 1.0
    assert float(gradient_energy(ramp[:, :1])) == 0.0


def test_a_perfect_picture_has_no_loss(rng: np.random.Generator) -> None:
    target = rng.uniform(size=(13, 12, 3))
    assert float(terms(target, target, SMALL)["loss"]) == pytest.approx(0, abs=1e-12)


def test_adams_first_step_has_the_length_of_the_learning_rate() -> None:
    p, m, v = np.zeros(3), np.zeros(3), np.zeros(3)
    adam(p, np.array([5.0, -0.01, 0.0]), m, v, lr=0.1, step=1)
    np.testing.assert_allclose(p, [-0.1, 0.1, 0.0], rtol=1e-5)


def test_newton_schulz_pulls_singular_values_to_one(rng: np.random.Generator) -> None:
    singular = np.linalg.svd(orthogonalise(rng.normal(size=(8, 16))), compute_uv=False)
    assert np.all((singular > 0.6) & (singular < 1.3))


def test_the_schedule_warms_up_and_cuts_on_a_plateau() -> None:
    schedule = Schedule(SMALL)
    rates = []
    for _ in range(60):
        rates.append(schedule.begin_epoch())
        schedule.end_epoch(0.25)
    np.testing.assert_allclose(rates[:20], 2e-3 * np.arange(1, 21) / 20 * np.repeat([1, 0.7], [12, 8]))
    assert schedule.plateau_scale == pytest.approx(0.7**5)
    for _ in range(300):
        schedule.end_epoch(0.25)
    assert schedule.plateau_scale == 0.01


def test_a_few_epochs_reduce_the_loss_and_average_the_last(rng: np.random.Generator) -> None:
    target = astronaut()[::40, ::43] / 255.0
    config = Config(*target.shape[:2], halo=3, nf=8, layers=2, ks=3, kn=4)
    trainer = Trainer(config, target, random_weights(config, rng))
    seen = []
    for _ in range(12):
        trainer.epoch()
        seen.append(trainer.weights.copy())
    assert trainer.losses[-1] < 0.8 * trainer.losses[0]
    np.testing.assert_allclose(trainer.averaged(), np.mean(seen[-10:], axis=0))
