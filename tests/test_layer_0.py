"""Layer 0 of plan `fused-f16` by its two ways, by tiles for gentle waves and exactly for sharp ones, against NumPy in
float64. What multiplies matrices has a stand-in here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from convtrain.gpu.snapshot import DeviceSnapshot
from cook.model import ModelConfig
from cook.recipes.fused import tiles
from live_device import device
from oracle.layout import Config, random_weights, unpack
from oracle.model import coordinates, kernel
from scalar_parts import ScalarParts, tiled_parts

__all__ = ["device"]

MODEL = ModelConfig(height=21, width=30, layers=2, halo=6, kn=20, den=0.1)
STEP = 60 / 30  # radians from pixel to pixel that a weight of 1 of the stem gives
PASSES = ("operands", "wave_tiles", "stem_mix", "wave_mix")


@pytest.fixture(scope="module", params=[0, 1])
def parts(
    device: DeviceSnapshot, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ScalarParts]:
    """With layer 0's output in halves, and in fixed point"""
    with tiled_parts(replace(MODEL, fine=request.param), device, tmp_path_factory.mktemp("spirv"), PASSES) as made:
        yield made


def weights_up_to(turn: float) -> np.ndarray:
    """Waves that turn so far from pixel to pixel, and no further."""
    config, rng = Config.of(MODEL.config()), np.random.default_rng(5)
    flat = random_weights(config, rng)
    stem = unpack(flat, config)["stem.w"]
    stem[:] = rng.uniform(-1, 1, stem.shape) * tiles.LIMIT / STEP
    stem[7, 1] = turn / STEP
    return flat


def layer_0(flat: np.ndarray, offset: tuple[float, float]) -> np.ndarray:
    """Its m over the domain; the kernels count on what lies beyond it being more of the same waves."""
    config = Config.of(MODEL.config())
    w, radius = unpack(flat, config), MODEL.radius
    z = 30 * (np.einsum("fk,kyx->fyx", w["stem.w"], coordinates(config, offset)) + w["stem.b"][:, None, None])
    v, u = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    taps, turn = kernel(w, config), STEP * np.einsum("fk,kvu->fvu", w["stem.w"], np.stack([u, v]))
    by_sine, by_cosine = ((taps * by).sum(axis=(1, 2))[:, None, None] for by in (np.cos(turn), np.sin(turn)))
    d = by_sine * np.sin(z) + by_cosine * np.cos(z) + w["dw.b"][:, None, None]
    return np.einsum("fo,fyx->oyx", w["mix.0"], np.concatenate([np.sin(z), d]))


def found(parts: ScalarParts) -> tuple[np.ndarray, np.ndarray]:
    """sin(m) and the sign of cos(m), where layer 1 needs them."""
    bits, region = parts.read_map("stem_mix", 3), parts.regions.widest
    bits = bits[:, region.y0 : region.y1, region.x0 : region.x1]
    if parts.model.fine:
        return (bits & 0x7FFF) / 2.0**13 - 2, np.where(bits & 0x8000, -1, 1)
    return (bits & 0xBFFF).view(np.float16).astype(np.float64), np.where(bits & 0x4000, -1, 1)


def clear(parts: ScalarParts) -> None:
    parts.write_map("stem_mix", 3, np.zeros(parts.map_shape(), np.uint16))


@pytest.mark.parametrize("offset", [(0.0, 0.0), (0.25, -0.375)])
@pytest.mark.parametrize("turn", [0.999 * tiles.LIMIT, 1.001 * tiles.LIMIT, 2.0])
def test_layer_0(parts: ScalarParts, turn: float, offset: tuple[float, float]) -> None:
    flat = weights_up_to(turn).astype(np.float32).astype(np.float64)
    parts.write_weights(flat)
    for name, value in zip(("offset_x", "offset_y"), offset, strict=True):
        parts.control(name, value)
    clear(parts)
    parts.run(*PASSES)
    value, sign = found(parts)
    region, inset = parts.regions.widest, MODEL.halo - (parts.regions.origin_y - parts.regions.widest.y0)
    m = layer_0(flat, offset)[:, inset : inset + region.rows, inset : inset + region.x1 - region.x0]
    error = np.abs(value - np.sin(m))  # most of it from M in halves
    assert error.max() < 1e-3
    assert np.sqrt((error**2).mean()) < 2e-4
    steep = np.abs(np.cos(m)) > 0.01
    np.testing.assert_array_equal(sign[steep], np.where(np.cos(m) < 0, -1, 1)[steep])
    # The other way has left the map alone.
    sharp = turn > tiles.LIMIT
    assert parts.read("wave_tiles", 4, np.uint32)[0] == sharp
    clear(parts)
    parts.run("wave_mix" if sharp else "stem_mix")
    assert not parts.read_map("stem_mix", 3).any()
