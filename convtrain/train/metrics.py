"""How good a picture is: PSNR before and after 8-bit rounding, and SSIM, in float64 on the host."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.floating]
Doubles = NDArray[np.float64]

SSIM_TAPS = 11
SSIM_SIGMA = 1.5
SSIM_C1 = 0.01**2
SSIM_C2 = 0.03**2
_WEIGHTS = np.exp(-0.5 * ((np.arange(SSIM_TAPS) - SSIM_TAPS // 2) / SSIM_SIGMA) ** 2)
_TAPS = _WEIGHTS / _WEIGHTS.sum()
_BAND = 16  # rows of the map computed at once: what they need stays in a processor's cache


@dataclass(frozen=True)
class Metrics:
    """Quality of a picture against its target. ``ssim`` is None where a side is under 11 pixels."""

    epoch: int
    psnr: float
    psnr_u8: float
    ssim: float | None

    def to_json(self) -> dict[str, float | int | None]:
        return asdict(self)

    def __str__(self) -> str:
        ssim = "none (a side is under 11 pixels)" if self.ssim is None else f"{self.ssim:.4f}"
        return f"PSNR {self.psnr:.2f} dB, {self.psnr_u8:.2f} dB after 8-bit rounding, SSIM {ssim}"


def to_u8(picture: Picture) -> NDArray[np.uint8]:
    """Clamp to [0, 1], scale to 255 and round half to even. Non-finite values become black."""
    values = np.array(picture, np.float64)
    if not np.isfinite(values).all():
        np.nan_to_num(values, copy=False, nan=0.0, posinf=1.0, neginf=0.0)
    np.clip(values, 0.0, 1.0, out=values)
    values *= 255.0
    return np.rint(values, out=values).astype(np.uint8)


def psnr(picture: Picture, target: Picture) -> float:
    """Peak signal-to-noise ratio in dB for data range 1; infinite for equal pictures."""
    error = np.subtract(picture, target, dtype=np.float64)
    mse = float(np.mean(np.square(error, out=error)))
    return math.inf if mse == 0.0 else -10.0 * math.log10(mse)


def _slide(source: Doubles, axis: int, out: Doubles, spare: Doubles) -> Doubles:
    """The window's weighted sum along one axis, into ``out``, which is ten shorter there. ``spare`` is like ``out``."""
    length, middle = out.shape[axis], SSIM_TAPS // 2

    def shifted(by: int) -> Doubles:
        return source[(slice(None),) * axis + (slice(by, by + length),)]

    np.multiply(shifted(middle), _TAPS[middle], out=out)
    for k in range(middle):
        np.add(shifted(k), shifted(SSIM_TAPS - 1 - k), out=spare)  # the two have the same weight
        np.multiply(spare, _TAPS[k], out=spare)
        np.add(out, spare, out=out)
    return out


def _similarity(mean_x: Doubles, mean_y: Doubles, product: Doubles, square_x: Doubles, square_y: Doubles) -> Doubles:
    """The map of local similarities, from windowed x, y, xy, x² and y²."""
    means, squares = mean_x * mean_y, mean_x**2 + mean_y**2
    variances = np.maximum(square_x - mean_x**2, 0.0) + np.maximum(square_y - mean_y**2, 0.0)
    covariance = product - means
    return np.asarray((2 * means + SSIM_C1) / (squares + SSIM_C1) * (2 * covariance + SSIM_C2) / (variances + SSIM_C2))


def ssim(picture: Picture, target: Picture) -> float | None:
    """Mean structural similarity (Wang et al. 2004) of (H, W, 3) pictures with data range 1.

    Gaussian window of 11 taps with σ = 1.5, valid region, population variance. None where a side is under 11 pixels.
    """
    if min(picture.shape[:2]) < SSIM_TAPS:
        return None
    reach = SSIM_TAPS - 1
    rows, columns = picture.shape[0] - reach, picture.shape[1] - reach
    # Memory is asked for once: on some machines that costs more than the sums.
    planes = np.empty((3, _BAND + reach, *picture.shape[1:]))
    down, spare = np.empty((2, _BAND, *picture.shape[1:]))
    windowed = np.empty((5, _BAND, columns, 3))

    def blur(plane: Doubles, out: Doubles) -> None:
        count = len(out)
        _slide(_slide(plane, 0, down[:count], spare[:count]), 1, out, spare[:count, :columns])

    total = 0.0
    for first in range(0, rows, _BAND):
        count = min(_BAND, rows - first)
        x, y, product = planes[:, : count + reach]
        x[...], y[...] = (image[first : first + count + reach] for image in (picture, target))
        np.multiply(x, y, out=product)
        found = windowed[:, :count]
        for plane, out in zip((x, y, product), found[:3], strict=True):
            blur(plane, out)
        for plane, out in zip((x, y), found[3:], strict=True):
            blur(np.square(plane, out=plane), out)
        total += float(np.sum(_similarity(*found)))
    return float(total / (rows * columns * 3))


def measure(picture: Picture, target: Picture, epoch: int) -> Metrics:
    """All figures of a picture; both arrays (H, W, 3)."""
    rounded = to_u8(picture) / 255.0
    return Metrics(epoch, psnr(picture, target), psnr(rounded, target), ssim(picture, target))
