"""How good a picture is, and when a training got there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

THRESHOLDS = (30.0, 35.0, 38.0, 39.0)
"""PSNR in dB whose times the tables give."""


def decibels(mse: float) -> float | None:
    """PSNR for data range 1; None where the error is not finite or zero."""
    return -10 * math.log10(mse) if math.isfinite(mse) and mse > 0 else None


def psnr(picture: NDArray[np.float32], target: NDArray[np.float32]) -> tuple[float | None, float | None]:
    """PSNR of a picture as it is, and clamped and rounded to 8 bits."""
    exact, wanted = np.asarray(picture, np.float64), np.asarray(target, np.float64)
    if not np.isfinite(exact).all():
        return None, None
    rounded = np.rint(np.clip(exact, 0, 1) * 255) / 255
    return decibels(float(np.mean((exact - wanted) ** 2))), decibels(float(np.mean((rounded - wanted) ** 2)))


Curve = Sequence[tuple[int, float]]
"""(epoch, PSNR in dB of the weights that the epoch began with), ascending."""


def curve_of(errors: Sequence[float]) -> list[tuple[int, float]]:
    """The curve of a list with every epoch's mse, epoch 1 first."""
    found = [(epoch, decibels(error)) for epoch, error in enumerate(errors, 1)]
    return [(epoch, value) for epoch, value in found if value is not None]


def epochs_to(curve: Curve, threshold: float) -> float | None:
    """The epoch at which the curve first reaches a threshold, interpolated where not every epoch is known."""
    before: tuple[int, float] | None = None
    for epoch, value in curve:
        if value >= threshold:
            if before is None or epoch == before[0] + 1:
                return float(epoch)
            return before[0] + (epoch - before[0]) * (threshold - before[1]) / (value - before[1])
        before = (epoch, value)
    return None
