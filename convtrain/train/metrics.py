"""How good a picture is: PSNR before and after 8-bit rounding, and SSIM, in float64 on the host."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.floating]

SSIM_TAPS = 11
SSIM_SIGMA = 1.5
SSIM_C1 = 0.01**2
SSIM_C2 = 0.03**2
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
    values = np.asarray(picture, np.float64)
    if not np.isfinite(values).all():
        values = np.nan_to_num(values, nan=0.0, posinf=1.0, neginf=0.0)
    return np.rint(np.clip(values, 0.0, 1.0) * 255.0).astype(np.uint8)


def psnr(picture: Picture, target: Picture) -> float:
    """Peak signal-to-noise ratio in dB for data range 1; infinite for equal pictures."""
    error = np.asarray(picture, np.float64) - np.asarray(target, np.float64)
    mse = float(np.mean(error * error))
    return math.inf if mse == 0.0 else -10.0 * math.log10(mse)


def _blur(planes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Gaussian window over axes 0 and 1 of an (H, W, 3) array, valid region only."""
    offsets = np.arange(SSIM_TAPS) - SSIM_TAPS // 2
    taps = np.exp(-0.5 * (offsets / SSIM_SIGMA) ** 2)
    taps /= taps.sum()
    rows = planes.shape[0] - SSIM_TAPS + 1
    columns = planes.shape[1] - SSIM_TAPS + 1
    down = taps[0] * planes[:rows]
    for k in range(1, SSIM_TAPS):
        down += taps[k] * planes[k : k + rows]
    blurred = taps[0] * down[:, :columns]
    for k in range(1, SSIM_TAPS):
        blurred += taps[k] * down[:, k : k + columns]
    return np.asarray(blurred)


def _similarity(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """The map of local similarities of two (H, W, 3) arrays."""
    mean_x, mean_y = _blur(x), _blur(y)
    var_x = np.maximum(_blur(x * x) - mean_x**2, 0.0)
    var_y = np.maximum(_blur(y * y) - mean_y**2, 0.0)
    covariance = _blur(x * y) - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + SSIM_C1) / (mean_x**2 + mean_y**2 + SSIM_C1)
    structure = (2 * covariance + SSIM_C2) / (var_x + var_y + SSIM_C2)
    return np.asarray(luminance * structure)


def ssim(picture: Picture, target: Picture) -> float | None:
    """Mean structural similarity (Wang et al. 2004) of (H, W, 3) pictures with data range 1.

    Gaussian window of 11 taps with σ = 1.5, valid region, population variance. None where a side is under 11 pixels.
    """
    x, y = np.asarray(picture, np.float64), np.asarray(target, np.float64)
    if min(x.shape[:2]) < SSIM_TAPS:
        return None
    rows, total = x.shape[0] - SSIM_TAPS + 1, 0.0
    for first in range(0, rows, _BAND):
        band = slice(first, min(first + _BAND, rows) + SSIM_TAPS - 1)
        total += float(np.sum(_similarity(x[band], y[band])))
    return float(total / (rows * (x.shape[1] - SSIM_TAPS + 1) * 3))


def measure(picture: Picture, target: Picture, epoch: int) -> Metrics:
    """All figures of a picture; both arrays (H, W, 3)."""
    rounded = to_u8(picture).astype(np.float64) / 255.0
    return Metrics(epoch, psnr(picture, target), psnr(rounded, target), ssim(picture, target))
