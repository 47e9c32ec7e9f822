"""The ConvSIREN model's constants: geometry, weight layout and hyper-parameters, in one immutable description."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from functools import cached_property

from convtrain.errors import InputError

TILE = 128
"""Pixels per tile of the weight-gradient product; the domain is padded to whole slices of whole tiles."""

MAX_SLICES = 43
"""The weight-gradient product over pixels is cut in at most this many equal slices."""

SSIM_TAPS = 11
"""Side of the SSIM window; an image with a shorter side has no SSIM term."""

MAXIMA = {
    "nf": 4096,
    "layers": 64,
    "ks": 31,
    "kn": 4096,
    "halo": 4096,
    "average_window": 1000,
    "warmup": 10**9,
    "patience": 10**9,
}
"""Far above what is of use; beyond them there is a mistake, and a cook that would take hours or all memory."""

MAX_INDEX = 2**31 - 1
"""Of an element of a feature map: kernels count in int."""

MAX_BUFFER = 2**32 - 1
"""Bytes that a Vulkan storage buffer can have at most, on any device."""

FLOAT32_MAX = (2 - 2**-23) * 2.0**127
FLOAT32_MIN = 2.0**-126  # the least normal one: devices may flush what is smaller to 0


@dataclass(frozen=True)
class Slot:
    """A named part of the weight buffer.

    ``shape`` is how people see it, ``span`` the floats it occupies from ``offset`` on (more than the shape's where
    part of it is unused). First values are drawn from U(-bound, bound); with ``bound`` 0 they are all ``fill``.
    """

    name: str
    offset: int
    shape: tuple[int, ...]
    span: int
    bound: float = 0.0
    fill: float = 0.0

    @property
    def size(self) -> int:
        """Floats in use: the product of ``shape``."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides what is trained and how. Raises InputError for a model that cannot exist.

    ``den`` is the gradient energy of the target image (see ``cook.image.gradient_energy``).
    """

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
    fine: int = 0  # 1: plan fused-f16 keeps layer 0's output in fixed point, where rounding costs most

    seed: int = 0
    den: float = 1.0

    def __post_init__(self) -> None:
        for name in ("height", "width", "layers", "ks", "kn", "nf", "warmup", "average_window"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("halo", "patience", "seed"):
            self._require(name, getattr(self, name) >= 0, "at least 0")
        self._require("fine", self.fine in (0, 1), "0 or 1")
        for name, maximum in MAXIMA.items():
            self._require(name, getattr(self, name) <= maximum, f"at most {maximum}")
        self._require("nf", self.nf % 8 == 0, "a multiple of 8")
        self._require("ks", self.ks % 2 == 1, "odd")
        positive = ("lr", "den", "plateau_factor")
        for item in fields(self):
            if item.type == "float":
                size = abs(getattr(self, item.name))
                self._require(item.name, math.isfinite(size), "a finite number")
                self._require(item.name, size <= FLOAT32_MAX, "within the range of float32 (up to 3.4e38)")
                in_range = size == 0 or size >= FLOAT32_MIN
                zero = "" if item.name in positive else "0 or "
                self._require(item.name, in_range, f"{zero}within the range of float32 (from 1.2e-38)")
        for name in positive:
            self._require(name, getattr(self, name) > 0, "greater than 0")
        for name in ("lambda_c", "lambda_g", "lambda_s", "muon_scale", "plateau_floor"):
            self._require(name, getattr(self, name) >= 0, "at least 0")
        for name in ("plateau_factor", "plateau_floor", "improvement"):
            self._require(name, getattr(self, name) <= 1, "at most 1")
        self._require("ema_decay", 0 <= self.ema_decay < 1, "at least 0 and below 1")
        if 4 * self.weights * self.average_window > MAX_BUFFER:
            raise InputError(
                f"nf={self.nf} and layers={self.layers} make {self.weights} weights, and average_window="
                f"{self.average_window} copies of them exceed the 4 GiB of a buffer: choose smaller values."
            )

    def require_indexable(self) -> None:
        """Refuse an image whose feature maps the kernels' 32-bit indexes cannot reach. Raises InputError."""
        numbers = 2 * self.nf * self.padded_pixels
        if numbers > MAX_INDEX:
            raise InputError(
                f"{self.width}x{self.height} pixels with nf={self.nf} make feature maps of {numbers:,} numbers, and "
                f"the kernels count to {MAX_INDEX:,}: choose a smaller --size or nf."
            )

    def _require(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            raise InputError(f"{name} must be {what}, and it is {getattr(self, name)}.")

    @property
    def radius(self) -> int:
        """Half the depthwise kernel's side: taps reach this many pixels in each direction."""
        return (self.ks - 1) // 2

    @property
    def taps(self) -> int:
        return self.ks * self.ks

    @property
    def domain_height(self) -> int:
        return self.height + 2 * self.halo

    @property
    def domain_width(self) -> int:
        return self.width + 2 * self.halo

    @property
    def pixels(self) -> int:
        """Pixels of the domain (image and halo)."""
        return self.domain_height * self.domain_width

    @property
    def tiles_per_slice(self) -> int:
        return math.ceil(math.ceil(self.pixels / TILE) / MAX_SLICES)

    @property
    def slices(self) -> int:
        return math.ceil(math.ceil(self.pixels / TILE) / self.tiles_per_slice)

    @property
    def padded_pixels(self) -> int:
        """Pixels of the domain padded to whole slices: the row length of every feature-major buffer."""
        return TILE * self.slices * self.tiles_per_slice

    @property
    def has_ssim(self) -> bool:
        return min(self.height, self.width) >= SSIM_TAPS

    @property
    def mix_size(self) -> int:
        """Floats of one layer's mixing matrix."""
        return 2 * self.nf * self.nf

    @cached_property
    def _slots(self) -> tuple[Slot, ...]:
        nf, kn = self.nf, self.kn
        mix_bound = 0.3 * math.sqrt(6 / (2 * nf))
        parts: list[tuple[str, tuple[int, ...], float]] = [
            ("kern.w1", (kn, 2), 1.0),
            ("kern.b1", (kn,), 1.0),
            ("kern.w2", (nf, kn), 3 * math.sqrt(6 / kn) / self.ks),
            ("kern.b2", (nf,), 0.02),
            ("stem.w", (nf, 2), 1.0),
            ("stem.b", (nf,), math.pi / 30),
            ("dw.b", (nf,), 0.0),
            *((f"mix.{layer}", (2 * nf, nf), mix_bound) for layer in range(self.layers)),
            ("head.w", (3, nf), math.sqrt(6 / nf) / 4),
        ]
        slots: list[Slot] = []
        offset = 0
        for name, shape, bound in parts:
            slots.append(Slot(name, offset, shape, math.prod(shape), bound))
            offset += math.prod(shape)
        # The head's bias takes a whole row of NF floats, of which three are used.
        slots.append(Slot("head.b", offset, (3,), nf, fill=0.5))
        return tuple(slots)

    def slots(self) -> tuple[Slot, ...]:
        """The weight slots in WBuf order; the gradient and both Adam moments have the same layout."""
        return self._slots

    def slot(self, name: str) -> Slot:
        """The slot with this name. Raises KeyError."""
        for slot in self._slots:
            if slot.name == name:
                return slot
        raise KeyError(name)

    @property
    def weights(self) -> int:
        """Floats in the weight buffer, unused ones included."""
        last = self._slots[-1]
        return last.offset + last.span

    def config(self) -> dict[str, int | float]:
        """The manifest's ``config``: every field by name, and the pixel counts of the domain."""
        return {**asdict(self), "pixels": self.pixels, "padded_pixels": self.padded_pixels}

    def pack(self) -> dict[str, int | float]:
        """The ``model`` injection pack: the layout constants that a shader may declare under ``// model``."""
        return {
            "HEIGHT": self.height,
            "WIDTH": self.width,
            "HALO": self.halo,
            "DOMAIN_H": self.domain_height,
            "DOMAIN_W": self.domain_width,
            "PIXELS": self.pixels,
            "PADDED": self.padded_pixels,
            "TILES": math.ceil(self.pixels / TILE),
            "SLICES": self.slices,
            "TILES_PER_SLICE": self.tiles_per_slice,
            "NF": self.nf,
            "LAYERS": self.layers,
            "KS": self.ks,
            "RADIUS": self.radius,
            "TAPS": self.taps,
            "KN": self.kn,
            "WEIGHTS": self.weights,
            "MIX_SIZE": self.mix_size,
            "OFFSET_KERN_W1": self.slot("kern.w1").offset,
            "OFFSET_KERN_B1": self.slot("kern.b1").offset,
            "OFFSET_KERN_W2": self.slot("kern.w2").offset,
            "OFFSET_KERN_B2": self.slot("kern.b2").offset,
            "OFFSET_STEM_W": self.slot("stem.w").offset,
            "OFFSET_STEM_B": self.slot("stem.b").offset,
            "OFFSET_DW_B": self.slot("dw.b").offset,
            "OFFSET_MIX": self.slot("mix.0").offset,
            "OFFSET_HEAD_W": self.slot("head.w").offset,
            "OFFSET_HEAD_B": self.slot("head.b").offset,
        }
