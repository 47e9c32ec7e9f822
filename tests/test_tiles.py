"""What layer 0 by tiles multiplies by, against NumPy in float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from convtrain.gpu.snapshot import DeviceSnapshot
from cook.model import ModelConfig
from cook.recipes.fused import tiles
from live_device import device
from oracle.layout import Config, random_weights, unpack
from scalar_parts import ScalarParts, tiled_parts

__all__ = ["device"]

MODEL = ModelConfig(height=21, width=30, layers=2, halo=6, kn=20, den=0.1)
STEP = 60 / 30  # radians from pixel to pixel that a weight of 1 of the stem gives
SHARP = 5  # a feature with too large a weight


@pytest.fixture(scope="module")
def parts(device: DeviceSnapshot, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScalarParts]:
    with tiled_parts(MODEL, device, tmp_path_factory.mktemp("spirv"), ["operands"]) as made:
        yield made


@pytest.fixture(scope="module")
def weights(parts: ScalarParts) -> dict[str, np.ndarray]:
    """Waves as gentle as those of a large image, but for two."""
    config, rng = Config.of(MODEL.config()), np.random.default_rng(5)
    flat = random_weights(config, rng)
    views = unpack(flat, config)
    views["stem.w"][:] = rng.uniform(-1, 1, (MODEL.nf, 2)) * tiles.LIMIT / STEP
    views["stem.w"][0] = 0.999 * tiles.LIMIT / STEP
    views["stem.w"][SHARP] = 0.5 * tiles.LIMIT / STEP, -1.001 * tiles.LIMIT / STEP
    views["stem.w"][SHARP + 1, 0] = np.nan
    parts.write_weights(flat)
    parts.run("operands")
    return {"flat": flat, **unpack(flat, config)}


def offsets() -> tuple[np.ndarray, np.ndarray]:
    """dx and dy of a tile's pixels, in the order of a map's blocks."""
    p = np.arange(tiles.PIXELS)
    return p // 32 % 2 * 8 + p % 8 - 7.5, p // 64 * 4 + p // 8 % 4 - 7.5


def basis(parts: ScalarParts) -> np.ndarray:
    return parts.read("operands", 8, np.float16).astype(np.float64).reshape(tiles.TERMS, tiles.PIXELS)


def test_basis_is_orthogonal(parts: ScalarParts, weights: dict[str, np.ndarray]) -> None:
    found = basis(parts)
    product = found @ found.T
    size = np.sqrt(np.diag(product))
    np.testing.assert_allclose(product / np.outer(size, size), np.eye(tiles.TERMS), atol=3e-4)
    np.testing.assert_array_equal(found[0], 1)
    assert (np.abs(found).max(axis=1) > 0.25).all()
    assert np.abs(found).max() <= 1
    dx, dy = offsets()
    np.testing.assert_array_equal(found[1], dx * dy / 64)


def test_waves_and_their_slopes(parts: ScalarParts, weights: dict[str, np.ndarray]) -> None:
    """Even terms make the cosine, odd ones the sine, within what docs/fused.md states; likewise times dx and dy."""
    found, coefficients = basis(parts), parts.read("operands", 9).astype(np.float64).reshape(MODEL.nf, 3, tiles.TERMS)
    dx, dy = offsets()
    gentle = np.delete(np.arange(MODEL.nf), [SHARP, SHARP + 1])
    turn = STEP * (weights["stem.w"][gentle] @ np.array([dx, dy]))
    is_even = np.arange(tiles.TERMS) % 16 < 8
    even, odd = np.flatnonzero(is_even), np.flatnonzero(~is_even)
    errors = np.concatenate(
        [
            coefficients[gentle, 0][:, even] @ found[even] - np.cos(turn),
            coefficients[gentle, 0][:, odd] @ found[odd] - np.sin(turn),
        ]
    )
    assert np.abs(errors).max() < 2.5e-4
    assert np.sqrt((errors**2).mean()) < 1.5e-5
    for kind, weight in ((1, dx), (2, dy)):
        errors = np.concatenate(
            [
                coefficients[gentle, kind][:, odd] @ found[odd] - weight * np.cos(turn),
                coefficients[gentle, kind][:, even] @ found[even] + weight * np.sin(turn),
            ]
        )
        assert np.abs(errors).max() < 1e-2
        assert np.sqrt((errors**2).mean()) < 1e-3


def test_sharp_waves_are_reported(parts: ScalarParts, weights: dict[str, np.ndarray]) -> None:
    sharp = parts.read("operands", 11, np.uint32)
    np.testing.assert_array_equal(np.flatnonzero(sharp), [SHARP, SHARP + 1])


def test_what_a_wave_contributes(parts: ScalarParts, weights: dict[str, np.ndarray]) -> None:
    """m of a pixel from the sines and cosines in its tile's middle."""
    rows = parts.read("operands", 10, np.float16).astype(np.float64)
    rows = rows.reshape(2 * MODEL.nf + tiles.CONSTANTS, MODEL.nf, tiles.TERMS)
    gentle = np.delete(np.arange(MODEL.nf), [SHARP, SHARP + 1])
    waves = parts.read("operands", 4).astype(np.float64).reshape(MODEL.nf, -1)
    a, b = waves[gentle, 0, None], waves[gentle, 1, None]
    z0 = np.random.default_rng(6).uniform(-9, 9, (len(gentle), 1))
    dx, dy = offsets()
    z = z0 + STEP * (weights["stem.w"][gentle] @ np.array([dx, dy]))
    mix = weights["mix.0"]
    expected = mix[gentle].T @ np.sin(z) + mix[MODEL.nf + gentle].T @ (a * np.sin(z) + b * np.cos(z))
    made = np.einsum("fok,fx->ok", rows[gentle], np.sin(z0))
    made += np.einsum("fok,fx->ok", rows[MODEL.nf + gentle], np.cos(z0))
    error = made @ basis(parts) - expected
    assert np.linalg.norm(error) < 4e-4 * np.linalg.norm(expected)
    constants = rows[2 * MODEL.nf :]
    np.testing.assert_allclose(constants[:2, :, 0].sum(axis=0), weights["dw.b"] @ mix[MODEL.nf :], atol=1e-6)
    constants[:2, :, 0] = 0
    assert not constants.any()
