"""Every kernel of plan `fused` that needs no matrix units, against NumPy in float64."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from convtrain.gpu.snapshot import DeviceSnapshot
from convtrain.train.schedule import STATE_DTYPE
from cook.model import ModelConfig
from cook.recipes.fused import backward, loss, stem_back, tiles
from live_device import device
from oracle import loss as oracle_loss
from oracle.layout import Config, random_weights, unpack
from oracle.model import coordinates, kernel
from scalar_parts import ScalarParts, wave_numbers

__all__ = ["device"]

MODEL = ModelConfig(height=21, width=30, layers=2, halo=6, kn=20, den=0.1)
SCALE = 3 * MODEL.height * MODEL.width  # of gradients in fp16


def made_parts(device: DeviceSnapshot, folder: Path, smallest_side: int) -> ScalarParts:
    if not (device.float16 and device.storage_16bit):
        pytest.skip("no fp16 storage on this device")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backward, "HEAD_SLICES", 5)  # so that a slice has several blocks, as in a large picture
        patch.setattr(stem_back, "STEM_SPREAD_SLICES", 4)
        patch.setattr(tiles, "SMALLEST_SIDE", smallest_side)
        return ScalarParts(MODEL, device, folder)


@pytest.fixture(scope="module")
def parts(device: DeviceSnapshot, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScalarParts]:
    made = made_parts(device, tmp_path_factory.mktemp("spirv"), 1000)
    yield made
    made.engine.close()


@pytest.fixture(scope="module")
def tiled(device: DeviceSnapshot, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScalarParts]:
    """With kernels of layer 0 by tiles too"""
    made = made_parts(device, tmp_path_factory.mktemp("spirv"), 1)
    yield made
    made.engine.close()


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    config = Config.of(MODEL.config())
    flat = random_weights(config, np.random.default_rng(5)).astype(np.float32).astype(np.float64)
    return {"flat": flat, **unpack(flat, config)}


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def halves(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).view(np.uint16)


def numbers(bits: np.ndarray) -> np.ndarray:
    return bits.view(np.float16).astype(np.float64)


def test_operands(parts: ScalarParts, weights: dict[str, np.ndarray]) -> None:
    config = Config.of(MODEL.config())
    taps = kernel(weights, config)
    parts.write_weights(weights["flat"])
    parts.run("operands")
    np.testing.assert_allclose(parts.read("operands", 1).reshape(taps.shape), taps, atol=1e-6)
    waves = parts.read("operands", 4).reshape(MODEL.nf, -1)
    np.testing.assert_allclose(waves, wave_numbers(weights, taps, MODEL), atol=2e-6)
    # T_v[s][dx] is the tap at (v, s - dx - 4 + RADIUS), forward and flipped.
    toeplitz = parts.read("operands", 2, np.float16).reshape(MODEL.nf, 2, MODEL.ks, 16, 8)
    most = np.abs(taps).max(axis=(1, 2))
    for kind, wanted in enumerate((taps, taps[:, ::-1, ::-1])):
        for v in range(MODEL.ks):
            for dx in range(8):
                column = np.zeros((MODEL.nf, 16))
                first = dx + 4 - MODEL.radius
                column[:, first : first + MODEL.ks] = wanted[:, v]
                assert (np.abs(toeplitz[:, kind, v, :, dx] - column) <= 2**-10 * most[:, None]).all()
    # Rounding errors are passed on from tap to tap: those of a kernel add up to that of its last one.
    first = 4 - MODEL.radius
    total = toeplitz[:, 0, :, first : first + MODEL.ks, 0].astype(np.float64).sum(axis=(1, 2))
    exact = parts.read("operands", 1).reshape(taps.shape).astype(np.float64)
    assert (np.abs(total - exact.sum(axis=(1, 2))) <= 2**-11 * most).all()
    mixes = parts.read("operands", 3, np.float16).reshape(MODEL.layers, 2, -1)
    for layer in range(MODEL.layers):
        matrix = weights[f"mix.{layer}"].astype(np.float16)
        np.testing.assert_array_equal(mixes[layer, 0], matrix.ravel())
        np.testing.assert_array_equal(mixes[layer, 1], matrix.T.ravel())
    # Of the 8 columns 3 are the colours of a warp's first group of pixels, and 3 of its second.
    heads = parts.read("operands", 6, np.float16).astype(np.float64).reshape(MODEL.nf // 16, 2, 2, 8, 16)
    assert np.abs(heads[:, :, 1]).max() < 2e-3 * np.abs(heads[:, :, 0]).max()
    heads = heads.sum(axis=2).transpose(0, 1, 3, 2)
    for group in range(2):
        mine = heads[:, group, :, 3 * group : 3 * group + 3].reshape(MODEL.nf, 3)
        np.testing.assert_allclose(mine.T, weights["head.w"], atol=1e-7)
        heads[:, group, :, 3 * group : 3 * group + 3] = 0
    assert not heads.any()


def test_head_back(parts: ScalarParts, weights: dict[str, np.ndarray]) -> None:
    rng = np.random.default_rng(1)
    parts.write_weights(weights["flat"])
    value = rng.uniform(-1, 1, parts.map_shape())
    negative = rng.integers(0, 2, value.shape).astype(bool)
    bits = halves(value) & 0xBFFF | np.where(negative, 0x4000, 0).astype(np.uint16)
    parts.write_map("head_back", 1, bits)
    x, y = parts.regions.origin_x, parts.regions.origin_y
    box = (slice(None), slice(y, y + MODEL.height), slice(x, x + MODEL.width))
    h = numbers(bits & 0xBFFF)[box]

    gradient = rng.normal(size=(MODEL.height, MODEL.width, 3)) * 1e-4
    parts.write("head_back", 2, gradient.astype(np.float32))
    parts.run("head_back")
    slope = np.where(negative[box], -1, 1) * np.sqrt(1 - h**2)
    expected = SCALE * np.einsum("cf,yxc->fyx", weights["head.w"], gradient) * slope
    assert relative(numbers(parts.read_map("head_back", 4))[box], expected) < 5e-4
    share = parts.read("head_back", 5).reshape(-1, MODEL.nf + 1, 3).astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(share[:-1], np.einsum("fyx,yxc->fc", h, gradient), atol=1e-7)
    np.testing.assert_allclose(share[-1], gradient.sum(axis=(0, 1)), atol=1e-7)


# Which kernels the plan has, and whether waves are sharp; how exact dM and the other gradients are
@pytest.mark.parametrize(
    ("by_tiles", "sharp", "of_mix", "of_others"),
    [(False, True, 5e-4, 5e-5), (True, True, 5e-4, 5e-5), (True, False, 5e-4, 1e-3)],
)
def test_layer_0_back_to_gradients(
    parts: ScalarParts,
    tiled: ScalarParts,
    weights: dict[str, np.ndarray],
    by_tiles: bool,
    sharp: bool,
    of_mix: float,
    of_others: float,
) -> None:
    """Random dm of layer 0, shares of the taps above and of the head: gather and step add up all. What multiplies
    matrices has a stand-in here; the plane waves, the sums of an octet and the terms are those of the plan."""
    config = Config.of(MODEL.config())
    rng = np.random.default_rng(2)
    parts = tiled if by_tiles else parts
    weights = {"flat": weights["flat"].copy()}
    weights |= unpack(weights["flat"], config)
    if not sharp:
        weights["stem.w"] *= tiles.LIMIT / (60 / MODEL.width) / np.abs(weights["stem.w"]).max()
    parts.write_weights(weights["flat"])
    parts.run("operands")
    if by_tiles:
        parts.write("stem_gather", 4, np.full_like(parts.read("stem_gather", 4, np.uint32), sharp))
    dm = halves(rng.normal(size=parts.map_shape()))
    parts.write_map("stem_spread", 2, dm)
    parts.run("stem_gather", "stem_spread", *(("wave_moments", "wave_gather", "wave_spread") if by_tiles else ()))
    region = parts.regions.widest
    inset = MODEL.halo - (parts.regions.origin_y - region.y0)
    inner = (slice(None), slice(inset, inset + region.rows), slice(inset, inset + region.x1 - region.x0))
    box = (slice(None), slice(region.y0, region.y1), slice(region.x0, region.x1))
    xy = coordinates(config)[inner]
    z = 30 * (np.einsum("kyx,fk->fyx", xy, weights["stem.w"]) + weights["stem.b"][:, None, None])
    taps = kernel(weights, config)
    v, u = np.mgrid[-MODEL.radius : MODEL.radius + 1, -MODEL.radius : MODEL.radius + 1]
    pixel = 2 / max(MODEL.height, MODEL.width)
    step = 30 * pixel * (weights["stem.w"][:, 0, None, None] * u + weights["stem.w"][:, 1, None, None] * v)
    a, b = (taps * np.cos(step)).sum(axis=(1, 2)), (taps * np.sin(step)).sum(axis=(1, 2))
    d = a[:, None, None] * np.sin(z) + b[:, None, None] * np.cos(z) + weights["dw.b"][:, None, None]
    parts.engine.run((max(item.index for item in parts.plan.passes if item.name == "gather_mix"),))
    matrix = unpack(parts.read("gather", 6).astype(np.float64), config)["mix.0"]
    expected_matrix = np.einsum("fyx,gyx->fg", np.concatenate([np.sin(z), d]), numbers(dm)[box]) / SCALE
    assert relative(matrix, expected_matrix) < of_mix
    spread = np.einsum("fg,gyx->fyx", weights["mix.0"].astype(np.float16).astype(np.float64), numbers(dm)[box])
    g, e = np.split(numbers(halves(spread)) if sharp else spread, 2)  # the exact kernel rounds them to halves
    dz = g * np.cos(z) + e * (a[:, None, None] * np.cos(z) - b[:, None, None] * np.sin(z))
    by_a, by_b = (e * np.sin(z)).sum(axis=(1, 2)), (e * np.cos(z)).sum(axis=(1, 2))

    tap_share = rng.normal(size=parts.read("gather_shares", 0).size)
    head_share = rng.normal(size=parts.read("gather_shares", 1).size)
    parts.write("gather_shares", 0, tap_share.astype(np.float32))
    parts.write("gather_shares", 1, head_share.astype(np.float32))
    words = np.zeros(12, np.uint32)
    for words[3] in (1, 0):  # no update of the weights in the step that adds up the k-net's shares
        parts.engine.write("state", words.tobytes())
        if words[3]:
            parts.run("gather_shares", "gather", "step")
    above = tap_share.reshape(-1, MODEL.nf, MODEL.taps + 1).sum(axis=0)
    tap_gradient = above[:, :-1].reshape(taps.shape)
    tap_gradient = (tap_gradient + by_a[:, None, None] * np.cos(step) + by_b[:, None, None] * np.sin(step)) / SCALE
    through = taps * (by_b[:, None, None] * np.cos(step) - by_a[:, None, None] * np.sin(step))
    axes = [(dz * xy[k]).sum(axis=(1, 2)) + pixel * (through * w).sum(axis=(1, 2)) for k, w in enumerate((u, v))]
    offsets = np.stack([u.ravel(), v.ravel(), np.ones(MODEL.taps)]) / np.array([[MODEL.radius], [MODEL.radius], [1]])
    phase = 10 * (weights["kern.w1"] @ offsets[:2] + weights["kern.b1"][:, None])
    up = np.einsum("fk,ft->kt", weights["kern.w2"], tap_gradient.reshape(MODEL.nf, -1)) * 10 * np.cos(phase)
    expected = {
        "kern.w1": up @ offsets[:2].T,
        "kern.b1": up.sum(axis=1),
        "kern.w2": tap_gradient.reshape(MODEL.nf, -1) @ np.sin(phase).T,
        "kern.b2": tap_gradient.sum(axis=(1, 2)),
        "stem.w": 30 * np.stack(axes, axis=1) / SCALE,
        "stem.b": 30 * dz.sum(axis=(1, 2)) / SCALE,
        "dw.b": (above[:, -1] + e.sum(axis=(1, 2))) / SCALE,
        "head.w": head_share.reshape(-1, MODEL.nf + 1, 3).sum(axis=0)[:-1].T,
    }
    gradient = unpack(parts.read("gather", 6).astype(np.float64), config)
    errors = {name: relative(gradient[name], value) for name, value in expected.items()}
    assert max(errors.values()) < of_others, errors
    np.testing.assert_allclose(
        gradient["head.b"][:3], head_share.reshape(-1, MODEL.nf + 1, 3).sum(axis=0)[-1], rtol=1e-5
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_shares_that_are_not_finite_are_reported(
    tiled: ScalarParts, weights: dict[str, np.ndarray], value: float
) -> None:
    """In one slice of layer 0's, whose spread has a stand-in here, and in one number of the others."""
    parts = tiled
    parts.write_weights(weights["flat"])
    parts.run("operands")
    region = parts.regions.widest
    dm = np.zeros(parts.map_shape())
    for sharp in (True, False):
        parts.write("stem_gather", 4, np.full_like(parts.read("stem_gather", 4, np.uint32), sharp))
        for broken in (True, False):
            dm[5, region.y0 + 3, region.x0 + 2] = value if broken else 0
            parts.write_map("stem_spread", 2, halves(dm))
            parts.run("stem_spread", "wave_moments", "wave_spread")
            reports = parts.read("stem_spread", 5, np.uint32)
            assert reports.size == 4
            assert reports.sum() == broken
    shares = np.zeros(parts.read("gather_shares", 0).size, np.float32)
    before = parts.model.layers * parts.model.mix_size // 256
    for number in (None, 0, 64 * 50 + 3):
        if number is not None:
            shares[number] = value
        parts.write("gather_shares", 0, shares)
        parts.write("gather_shares", 1, np.zeros_like(parts.read("gather_shares", 1)))
        parts.run("gather_shares")
        reports = parts.read("gather_shares", 3, np.uint32)[before:]
        assert set(np.flatnonzero(reports)) == ({number // 64, 0} if number is not None else set())


def test_shares_of_a_matrix(parts: ScalarParts) -> None:
    """The last layer's gather_mix, the first in the plan: gradient, squares of the momentum to be, broken values."""
    rng = np.random.default_rng(3)
    shares = rng.normal(size=(MODEL.layers, parts.read("gather_mix", 1).size // MODEL.layers))
    momentum = rng.normal(size=MODEL.layers * MODEL.mix_size)
    layer = MODEL.layers - 1
    config = Config.of(MODEL.config())
    for value in (None, np.nan, np.inf):
        if value is not None:
            shares[layer, 4321] = value
        parts.write("gather_mix", 1, shares.astype(np.float32))
        parts.write("gather_mix", 2, momentum.astype(np.float32))
        parts.run("gather_mix")
        groups = MODEL.mix_size // 256
        broken = parts.read("gather_mix", 5, np.uint32)[layer * groups : (layer + 1) * groups]
        if value is not None:
            assert broken.sum() == 1
            continue
        assert not broken.any()
        expected = shares[layer].reshape(-1, MODEL.mix_size).sum(axis=0) / SCALE
        gradient = unpack(parts.read("gather_mix", 3).astype(np.float64), config)[f"mix.{layer}"].ravel()
        assert relative(gradient, expected) < 1e-6
        after = 0.95 * momentum.reshape(MODEL.layers, -1)[layer] + expected
        squares = parts.read("gather_mix", 4).reshape(MODEL.layers, -1)[layer]
        assert abs(squares.sum() / (after**2).sum() - 1) < 1e-5
        assert relative(parts.read("gather_mix", 6).reshape(MODEL.layers, -1)[layer], after) < 1e-6


@pytest.mark.parametrize("slices", [1000, 3])
@pytest.mark.parametrize("size", [(40, 110), (11, 12), (10, 60), (1, 5), (9, 1)])
def test_loss(
    device: DeviceSnapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], slices: int
) -> None:
    """DlOut by central differences of the oracle's loss, and every term."""
    if not (device.float16 and device.storage_16bit):
        pytest.skip("no fp16 storage on this device")
    monkeypatch.setattr(loss, "SSIM_SLICES", slices)
    monkeypatch.setattr(loss, "GRADIENT_SLICES", slices)
    height, width = size
    rng = np.random.default_rng(4)
    target = rng.uniform(0, 1, (height, width, 3)).astype(np.float32).astype(np.float64)
    out = (target + rng.normal(scale=0.1, size=target.shape)).astype(np.float32).astype(np.float64)
    model = ModelConfig(height=height, width=width, layers=2, halo=6, kn=4, den=oracle_loss.gradient_scale(target))
    config = Config.of(model.config())
    parts = ScalarParts(model, device, tmp_path, {"ssim", "loss_gradient", "schedule"})
    with parts.engine:
        parts.write("ssim", 0, out.astype(np.float32))
        parts.write("ssim", 1, target.astype(np.float32))
        parts.run("ssim", "loss_gradient", "schedule")
        found = dict(zip(parts.plan.roles.loss_fields, parts.engine.host(parts.plan.roles.loss), strict=True))
        gradient = parts.read("loss_gradient", 2).reshape(out.shape).astype(np.float64)
        assert np.frombuffer(parts.engine.read("state"), STATE_DTYPE, count=1)[0]["step"] == 1
    for name, value in oracle_loss.terms(out, target, config).items():
        np.testing.assert_allclose(found[name], value, rtol=5e-6, err_msg=name)
    for _ in range(6):
        direction = rng.normal(size=out.shape)
        ahead, behind = (oracle_loss.terms(out + s * direction, target, config)["loss"] for s in (1e-5, -1e-5))
        np.testing.assert_allclose((gradient * direction).sum(), (ahead - behind) / 2e-5, rtol=2e-4, atol=1e-7)


def test_a_step(parts: ScalarParts, weights: dict[str, np.ndarray]) -> None:
    rng = np.random.default_rng(6)
    state = np.zeros(1, STATE_DTYPE)
    words = np.zeros(12, np.uint32)
    words[:8] = np.frombuffer(state.tobytes(), np.uint32)[:8]
    words[8:11] = np.array([1e-3, 0.19, 1.9e-3], np.float32).view(np.uint32)
    words[11] = 3
    first = next(slot.offset for slot in MODEL.slots() if slot.name == "mix.0")
    mixes = MODEL.layers * MODEL.mix_size
    count = weights["flat"].size
    g, m, v, y = (rng.normal(size=n) for n in (count, count, count, mixes))
    shares = rng.normal(size=(3 * MODEL.kn, MODEL.nf))
    units = next(slot.offset for slot in MODEL.slots() if slot.name == "kern.w1")
    g[units : units + 3 * MODEL.kn] = shares.sum(axis=1)
    v, b = v**2, rng.normal(size=mixes)
    for skipped in (1, 0):
        words[3] = skipped
        parts.write_weights(weights["flat"])
        for port, values in ((2, g), (3, m), (4, v), (6, b), (7, y), (8, shares)):
            parts.write("step", port, values.astype(np.float32))
        parts.engine.write("state", words.tobytes())
        parts.run("step")
        after = parts.read("step", 0).astype(np.float64)
        np.testing.assert_array_equal(parts.read("step", 1).reshape(10, -1)[3], after.astype(np.float32))
        if skipped:
            np.testing.assert_array_equal(after, weights["flat"])
            np.testing.assert_array_equal(parts.read("step", 6), b.astype(np.float32))
    np.testing.assert_allclose(parts.read("step", 2), g, rtol=1e-4, atol=1e-4)
    inside = slice(first, first + mixes)
    root = np.sqrt((0.999 * v + 1e-3 * g**2) / 1.9e-3)
    expected = weights["flat"] - 1e-3 / 0.19 * (0.9 * m + 0.1 * g) / (root + 1e-8)
    expected[inside] = weights["flat"][inside] - 1e-3 * MODEL.muon_scale * y
    np.testing.assert_allclose(after, expected, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(parts.read("step", 6), 0.95 * b + g[inside], rtol=1e-4, atol=1e-5)
