"""What a configuration is, and where each weight stands in the flat weight buffer WBuf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import pi, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Config:
    """The constants of one training: image H×W, ``halo`` pixels added on each side, network sizes, hyper-parameters."""

    height: int
    width: int
    halo: int
    nf: int  # features
    layers: int
    ks: int  # side of the depthwise kernel, odd
    kn: int  # width of the network that makes the kernel
    lr: float = 2e-3
    lambda_c: float = 0.25
    lambda_g: float = 0.0275
    lambda_s: float = 0.01
    muon_scale: float = 25.0
    patience: int = 10
    warmup: int = 20  # epochs
    plateau_factor: float = 0.7
    plateau_floor: float = 0.01
    improvement: float = 0.995
    ema_decay: float = 0.9
    average_window: int = 10  # epochs

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Config:
        """The configuration in a cooked archive's manifest, as ``convtrain info --json`` prints it."""
        return cls(**{f.name: config[f.name] for f in fields(cls) if f.name in config})

    @property
    def radius(self) -> int:
        return (self.ks - 1) // 2

    @property
    def domain(self) -> tuple[int, int]:
        """Rows and columns of everything but the output: the image and its halo."""
        return self.height + 2 * self.halo, self.width + 2 * self.halo


@dataclass(frozen=True)
class Slot:
    """One named tensor of WBuf. ``bound`` is b of its initial distribution U(-b, b)."""

    name: str
    offset: int  # floats
    shape: tuple[int, ...]
    bound: float

    @property
    def span(self) -> slice:
        return slice(self.offset, self.offset + prod(self.shape))


def slots(config: Config) -> tuple[Slot, ...]:
    """Every slot in WBuf's order. ``head.b`` occupies NF floats, of which the first 3 are used."""
    nf, kn = config.nf, config.kn
    table: list[tuple[str, tuple[int, ...], float]] = [
        ("kern.w1", (kn, 2), 1.0),
        ("kern.b1", (kn,), 1.0),
        ("kern.w2", (nf, kn), 3 * sqrt(6 / kn) / config.ks),
        ("kern.b2", (nf,), 0.02),
        ("stem.w", (nf, 2), 1.0),
        ("stem.b", (nf,), pi / 30),
        ("dw.b", (nf,), 0.0),
    ]
    table += [(f"mix.{layer}", (2 * nf, nf), 0.3 * sqrt(6 / (2 * nf))) for layer in range(config.layers)]
    table += [("head.w", (3, nf), sqrt(6 / nf) / 4), ("head.b", (nf,), 0.0)]
    result: list[Slot] = []
    offset = 0
    for name, shape, bound in table:
        result.append(Slot(name, offset, shape, bound))
        offset += prod(shape)
    return tuple(result)


def count(config: Config) -> int:
    """The number of floats in WBuf: 134,320 for the seed preset."""
    return slots(config)[-1].span.stop


def unpack(weights: Array, config: Config) -> dict[str, Array]:
    """The flat weight vector as named tensors. Differentiable."""
    return {slot.name: weights[slot.span].reshape(slot.shape) for slot in slots(config)}


def random_weights(config: Config, rng: np.random.Generator) -> Array:
    """Weights from the initial distribution (not the cooked seed's own numbers), with biases that are not zero."""
    weights = np.zeros(count(config))
    for slot in slots(config):
        weights[slot.span] = rng.uniform(-slot.bound, slot.bound, slot.span.stop - slot.span.start)
    tensors = {slot.name: slot for slot in slots(config)}
    weights[tensors["dw.b"].span] = rng.uniform(-0.1, 0.1, config.nf)
    first = tensors["head.b"].offset
    weights[first : first + 3] = 0.5 + rng.uniform(-0.1, 0.1, 3)
    return weights


def pack(tensors: Mapping[str, Array], config: Config) -> Array:
    """Named tensors as the flat weight vector; a ``head.b`` of three floats is padded with zeros."""
    weights = np.zeros(count(config))
    for slot in slots(config):
        values = np.asarray(tensors[slot.name], np.float64).ravel()
        weights[slot.offset : slot.offset + values.size] = values
    return weights
