"""What both sides train: the model's constants, the picture, the first weights. Plain data, JSON-able."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import pi, prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

PHOTOGRAPH = Path(__file__).parent.parent / "cook" / "data" / "astronaut.png"
PICTURE_NAME, PROBLEM_NAME = "picture.png", "problem.json"


@dataclass(frozen=True)
class Slot:
    """A named part of the weight buffer, ``offset`` floats from its start; drawn from U(-bound, bound)."""

    name: str
    offset: int
    shape: tuple[int, ...]
    bound: float

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Problem:
    """Constants of one training; the names and defaults are those of convtrain's archive, preset ``seed``."""

    height: int = 512
    width: int = 512
    halo: int = 14
    nf: int = 128
    layers: int = 4
    ks: int = 7
    kn: int = 16
    lr: float = 2e-3
    lambda_c: float = 0.25
    lambda_g: float = 0.0275
    lambda_s: float = 0.01
    muon_scale: float = 25.0
    warmup: int = 20
    patience: int = 10
    plateau_factor: float = 0.7
    plateau_floor: float = 0.01
    improvement: float = 0.995
    ema_decay: float = 0.9
    average_window: int = 10
    seed: int = 0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Problem:
        """From any mapping that has the fields, other keys ignored."""
        return cls(**{item.name: values[item.name] for item in fields(cls) if item.name in values})

    @property
    def radius(self) -> int:
        return (self.ks - 1) // 2

    @property
    def domain(self) -> tuple[int, int]:
        """Rows and columns of the picture with its halo."""
        return self.height + 2 * self.halo, self.width + 2 * self.halo

    @property
    def pixels(self) -> int:
        """Pixels of the domain."""
        return self.domain[0] * self.domain[1]

    @property
    def has_ssim(self) -> bool:
        return min(self.height, self.width) >= 11

    def slots(self) -> tuple[Slot, ...]:
        """The weight buffer's layout. ``head.b`` takes NF floats, of which three are used."""
        nf, kn = self.nf, self.kn
        parts: list[tuple[str, tuple[int, ...], float]] = [
            ("kern.w1", (kn, 2), 1.0),
            ("kern.b1", (kn,), 1.0),
            ("kern.w2", (nf, kn), 3 * sqrt(6 / kn) / self.ks),
            ("kern.b2", (nf,), 0.02),
            ("stem.w", (nf, 2), 1.0),
            ("stem.b", (nf,), pi / 30),
            ("dw.b", (nf,), 0.0),
            *((f"mix.{layer}", (2 * nf, nf), 0.3 * sqrt(6 / (2 * nf))) for layer in range(self.layers)),
            ("head.w", (3, nf), sqrt(6 / nf) / 4),
            ("head.b", (nf,), 0.0),
        ]
        found, offset = [], 0
        for name, shape, bound in parts:
            found.append(Slot(name, offset, shape, bound))
            offset += prod(shape)
        return tuple(found)

    def first_weights(self) -> NDArray[np.float32]:
        """The weights that `convtrain cook` packs for this problem, flat."""
        generator = np.random.Generator(np.random.PCG64(self.seed))
        slots = self.slots()
        weights = np.zeros(slots[-1].offset + slots[-1].size, np.float32)
        for slot in slots:
            if slot.bound > 0:
                weights[slot.offset : slot.offset + slot.size] = generator.uniform(-slot.bound, slot.bound, slot.size)
        weights[slots[-1].offset : slots[-1].offset + 3] = 0.5
        return weights


def photograph(side: int, source: Path = PHOTOGRAPH) -> Image.Image:
    """The packaged photograph as a square of this many pixels a side."""
    picture = Image.open(source).convert("RGB")
    return picture if picture.size == (side, side) else picture.resize((side, side), Image.Resampling.LANCZOS)


def save_problem(folder: Path, problem: Problem, picture: Image.Image) -> None:
    """Write the problem and its picture for a measurement's process. Creates the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    picture.save(folder / PICTURE_NAME)
    (folder / PROBLEM_NAME).write_text(json.dumps(asdict(problem)))


def load_problem(folder: Path) -> tuple[Problem, NDArray[np.float32]]:
    """What ``save_problem`` wrote: the constants, and the target float32 (H, W, 3) in [0, 1]."""
    problem = Problem.of(json.loads((folder / PROBLEM_NAME).read_text()))
    pixels = np.asarray(Image.open(folder / PICTURE_NAME).convert("RGB"), np.float32) / np.float32(255)
    if pixels.shape != (problem.height, problem.width, 3):
        raise ValueError(f"{folder / PICTURE_NAME} is not {problem.width}x{problem.height}")
    return problem, pixels


def holds(folder: Path, problem: Problem) -> bool:
    """True where this problem was saved in the folder, picture and all."""
    try:
        return load_problem(folder)[0] == problem
    except (OSError, ValueError, TypeError, AttributeError, SyntaxError):  # the last is Pillow's, of a broken PNG
        return False
