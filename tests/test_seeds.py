"""Seed weights, the weight layout, presets and settings."""

from __future__ import annotations

import math

import numpy as np
import pytest

from convtrain.errors import InputError
from cook.model import ModelConfig
from cook.presets import PRESETS, configure, find_preset, parse_settings, parse_size
from cook.seeds import draw_weights


def test_seed_preset_layout() -> None:
    model = configure(find_preset("seed"), {})
    assert model.weights == 134_320
    assert (model.pixels, model.padded_pixels) == (291_600, 291_712)
    assert (model.slices, model.tiles_per_slice) == (43, 53)
    assert [slot.name for slot in model.slots()] == [
        *("kern.w1", "kern.b1", "kern.w2", "kern.b2", "stem.w", "stem.b", "dw.b"),
        *("mix.0", "mix.1", "mix.2", "mix.3", "head.w", "head.b"),
    ]
    end = 0
    for slot in model.slots():
        assert slot.offset == end
        end += slot.span
    assert end == model.weights
    assert model.slot("head.b").shape == (3,)
    assert model.pack()["OFFSET_MIX"] == model.slot("mix.0").offset


@pytest.mark.parametrize("side", [1, 5, 17, 100, 333])
def test_padding_holds_every_pixel_in_whole_slices(side: int) -> None:
    model = ModelConfig(height=side, width=side + 2)
    assert model.pixels <= model.padded_pixels == 128 * model.slices * model.tiles_per_slice
    assert model.slices <= 43
    assert (model.slices - 1) * model.tiles_per_slice * 128 < model.pixels


def test_draws_are_numpys_in_layout_order() -> None:
    model = ModelConfig(nf=8, layers=2, ks=3, kn=4, seed=7)
    rng = np.random.default_rng(7)  # PCG64
    bounds = {
        "kern.w1": 1.0,
        "kern.b1": 1.0,
        "kern.w2": 3 * math.sqrt(6 / 4) / 3,
        "kern.b2": 0.02,
        "stem.w": 1.0,
        "stem.b": math.pi / 30,
        "mix.0": 0.3 * math.sqrt(6 / 16),
        "mix.1": 0.3 * math.sqrt(6 / 16),
        "head.w": math.sqrt(6 / 8) / 4,
    }
    weights = draw_weights(model)
    for name, bound in bounds.items():
        slot = model.slot(name)
        expected = rng.uniform(-bound, bound, slot.shape).astype(np.float32)
        assert np.array_equal(weights[slot.offset : slot.offset + slot.size].reshape(slot.shape), expected), name
    bias = model.slot("dw.b")
    assert not weights[bias.offset : bias.offset + bias.size].any()
    assert weights[model.slot("head.b").offset :].tolist() == [0.5] * 3 + [0.0] * 5


def test_another_seed_gives_other_weights() -> None:
    assert not np.array_equal(draw_weights(ModelConfig(nf=8, seed=0)), draw_weights(ModelConfig(nf=8, seed=1)))


def test_presets() -> None:
    assert {name: (configure(item, {}).nf, item.longest) for name, item in PRESETS.items()} == {
        "seed": (128, None),
        "small": (64, 256),
        "cpu": (32, 128),
    }
    with pytest.raises(InputError, match="no preset 'tiny'"):
        find_preset("tiny")


def test_settings_are_typed() -> None:
    assert parse_settings(["nf=64", "lr = 1e-3", "lambda_s=0"]) == {"nf": 64, "lr": 1e-3, "lambda_s": 0.0}
    assert isinstance(parse_settings(["lambda_s=0"])["lambda_s"], float)


@pytest.mark.parametrize(
    ("pair", "complaint"),
    [
        ("nf", "KEY=VALUE"),
        ("=3", "KEY=VALUE"),
        ("nf=", "KEY=VALUE"),
        ("nf=12.5", "whole number"),
        ("lr=fast", "a number"),
        ("NF=32", "did you mean 'nf'"),
        ("layer=3", "did you mean 'layers'"),
        ("colour=3", "There is no setting 'colour'"),
        ("width=3", "--size"),
        ("den=3", "There is no setting 'den'"),
    ],
)
def test_bad_settings(pair: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        parse_settings([pair])


def test_a_key_twice() -> None:
    with pytest.raises(InputError, match="twice"):
        parse_settings(["nf=8", "nf=16"])


@pytest.mark.parametrize(
    "settings",
    [
        *({"nf": 7}, {"nf": 0}, {"nf": -8}, {"ks": 4}, {"ks": 0}, {"ks": -1}, {"layers": 0}, {"kn": 0}, {"halo": -1}),
        *({"lr": 0.0}, {"lr": math.nan}, {"lr": math.inf}, {"lambda_c": -1.0}, {"patience": -1}, {"ema_decay": 1.0}),
        *({"plateau_factor": 1.5}, {"average_window": 0}, {"seed": -1}),
        *({"lr": 1e39}, {"lr": 1e-40}, {"lambda_c": 1e39}, {"muon_scale": 1e300}, {"improvement": -1e39}),
        *({"layers": 3000}, {"ks": 65}, {"kn": 5000}, {"nf": 8192}, {"halo": 5000}, {"average_window": 2000}),
        *({"warmup": 2**40}, {"patience": 2**40}),
    ],
    ids=str,
)
def test_models_that_cannot_exist(settings: dict[str, int | float]) -> None:
    key = next(iter(settings))
    with pytest.raises(InputError, match=f"^{key} must be"):
        configure(find_preset("cpu"), settings)


def test_weights_that_no_buffer_holds() -> None:
    with pytest.raises(InputError, match=r"nf=4096 and layers=64 make 2147.* weights"):
        configure(find_preset("cpu"), {"nf": 4096, "layers": 64})


def test_halo_follows_layers_and_kernel_unless_set() -> None:
    cpu = find_preset("cpu")
    assert configure(cpu, {}).halo == 14
    assert configure(cpu, {"layers": 2}).halo == 8
    assert configure(cpu, {"ks": 1}).halo == 2
    assert configure(cpu, {"ks": 3, "layers": 1}).halo == 3
    assert configure(cpu, {"ks": 3, "halo": 0}).halo == 0
    assert configure(cpu, {"nf": 8}).halo == 14


def test_seed_option_and_setting() -> None:
    assert configure(find_preset("cpu"), {"seed": 3}).seed == 3
    assert configure(find_preset("cpu"), {}, 4).seed == 4
    with pytest.raises(InputError, match="once"):
        configure(find_preset("cpu"), {"seed": 3}, 4)


def test_sizes() -> None:
    assert parse_size("640x480") == (640, 480)
    for text in ("640", "0x5", "5x0", "axb", "-1x5", "5x5x5", ""):
        with pytest.raises(InputError, match="--size takes"):
            parse_size(text)


def test_sizes_beyond_any_index_are_refused() -> None:
    with pytest.raises(InputError, match="more than 134,217,728 pixels"):
        parse_size("100000x100000")
    ModelConfig(nf=128, height=2800, width=2800).require_indexable()
    with pytest.raises(InputError, match="choose a smaller --size or nf"):
        ModelConfig(nf=128, height=3000, width=3000).require_indexable()
