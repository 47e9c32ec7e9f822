"""The loss, term by term. Pictures are (H, W, 3) in [0, 1], unclamped."""

from __future__ import annotations

from typing import Any

import autograd.numpy as np

from .layout import Array, Config

Scalar = Any
"""A float64, or autograd's stand-in for one."""

CHROMA = np.array([[-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])
"""The Cb and Cr rows of JPEG's colour transform."""

SSIM_TAPS, SSIM_SIGMA, SSIM_K1, SSIM_K2 = 11, 1.5, 0.01, 0.03


def mse(e: Array) -> Scalar:
    """Mean squared error over all three channels."""
    return np.mean(e**2)


def chroma(e: Array) -> Scalar:
    """Mean squared error of the two colour-difference channels."""
    return np.mean((e @ CHROMA.T) ** 2)


def gradient_energy(e: Array) -> Scalar:
    """Mean squared vertical plus mean squared horizontal difference; an axis of length 1 contributes nothing."""
    total = 0.0
    if e.shape[0] > 1:
        total = total + np.mean((e[1:] - e[:-1]) ** 2)
    if e.shape[1] > 1:
        total = total + np.mean((e[:, 1:] - e[:, :-1]) ** 2)
    return total


def gradient_scale(target: Array) -> float:
    """The denominator of the gradient term: the target's own gradient energy, floored."""
    return max(float(gradient_energy(target)), 1e-4)


def blur(picture: Array) -> Array:
    """Separable Gaussian blur of each channel, valid region only: (H - 10, W - 10, 3)."""
    t = np.arange(SSIM_TAPS) - SSIM_TAPS // 2
    taps = np.exp(-(t**2) / (2 * SSIM_SIGMA**2))
    taps = taps / taps.sum()
    rows, columns = picture.shape[0] - SSIM_TAPS + 1, picture.shape[1] - SSIM_TAPS + 1
    vertical = sum(taps[k] * picture[k : k + rows] for k in range(SSIM_TAPS))
    return sum(taps[k] * vertical[:, k : k + columns] for k in range(SSIM_TAPS))


def ssim(out: Array, target: Array) -> Scalar:
    """Mean structural similarity (Wang et al. 2004), data range 1. 1.0 where a side is under 11 pixels: no term."""
    if min(out.shape[:2]) < SSIM_TAPS:
        return 1.0
    c1, c2 = SSIM_K1**2, SSIM_K2**2
    mx, my = blur(out), blur(target)
    vx = np.maximum(blur(out**2) - mx**2, 0)
    vy = np.maximum(blur(target**2) - my**2, 0)
    cov = blur(out * target) - mx * my
    return np.mean((2 * mx * my + c1) * (2 * cov + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2)))


def terms(out: Array, target: Array, config: Config) -> dict[str, Scalar]:
    """The terms ``mse``, ``chroma``, ``grad``, ``ssim`` and their weighted sum ``loss``."""
    e = out - target
    parts = {"mse": mse(e), "chroma": chroma(e), "grad": gradient_energy(e), "ssim": ssim(out, target)}
    parts["loss"] = (
        parts["mse"]
        + config.lambda_c * parts["chroma"]
        + config.lambda_g / gradient_scale(target) * parts["grad"]
        + config.lambda_s * (1 - parts["ssim"])
    )
    return parts
