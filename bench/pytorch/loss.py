"""The loss: mean squared error, chroma, gradient and structural similarity. Pictures are planes (3, H, W), float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.problem import Problem

CHROMA = ((-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))
TAPS, SIGMA, C1, C2 = 11, 1.5, 0.01**2, 0.03**2


@dataclass(frozen=True)
class Terms:
    """The loss and its parts, scalars on the device."""

    loss: Tensor
    mse: Tensor
    chroma: Tensor
    grad: Tensor
    ssim: Tensor


def gradient_energy(e: Tensor) -> Tensor:
    """Mean squared vertical plus mean squared horizontal difference; an axis of length 1 contributes nothing."""
    total = e.new_zeros(())
    if e.shape[1] > 1:
        total = total + (e[:, 1:] - e[:, :-1]).square().mean()
    if e.shape[2] > 1:
        total = total + (e[:, :, 1:] - e[:, :, :-1]).square().mean()
    return total


class Loss:
    """The loss against one target, what depends on the target alone computed once.

    ``fused``: blur by shifted additions, which a compiler fuses; otherwise by two library convolutions.
    """

    def __init__(self, problem: Problem, target: Tensor, *, fused: bool) -> None:
        self.problem, self.target, self.fused = problem, target, fused
        offsets = torch.arange(TAPS, dtype=torch.float64) - TAPS // 2
        taps = torch.exp(-(offsets**2) / (2 * SIGMA**2))
        taps = taps / taps.sum()
        self._values = taps.tolist()
        self._taps = taps.to(target)
        self.den = max(float(gradient_energy(target.double())), 1e-4)
        if problem.has_ssim:
            mean, square = self._blur(torch.stack([target, target * target]))
            self.target_mean, self.target_variance = mean, (square - mean * mean).clamp(min=0)

    def _blur(self, planes: Tensor) -> Tensor:
        """Gaussian blur of planes (…, H, W), valid region: (…, H - 10, W - 10)."""
        rows, columns = planes.shape[-2] - TAPS + 1, planes.shape[-1] - TAPS + 1
        if not self.fused:
            flat = planes.reshape(-1, 1, *planes.shape[-2:])
            across = F.conv2d(F.conv2d(flat, self._taps.view(1, 1, -1, 1)), self._taps.view(1, 1, 1, -1))
            return across.view(*planes.shape[:-2], rows, columns)
        down = sum(tap * planes[..., k : k + rows, :] for k, tap in enumerate(self._values))
        assert isinstance(down, Tensor)
        across = sum(tap * down[..., k : k + columns] for k, tap in enumerate(self._values))
        assert isinstance(across, Tensor)
        return across

    def _ssim(self, out: Tensor) -> Tensor:
        """Mean structural similarity with the target (Wang et al. 2004), population variances."""
        mean, square, product = self._blur(torch.stack([out, out * out, out * self.target]))
        variance = (square - mean * mean).clamp(min=0)
        covariance = product - mean * self.target_mean
        luminance = (2 * mean * self.target_mean + C1) / (mean * mean + self.target_mean**2 + C1)
        structure = (2 * covariance + C2) / (variance + self.target_variance + C2)
        return torch.mean(luminance * structure)

    def __call__(self, out: Tensor) -> Terms:
        p = self.problem
        e = out - self.target
        mse = e.square().mean()
        chroma = torch.stack([(a * e[0] + b * e[1] + c * e[2]).square().mean() for a, b, c in CHROMA]).mean()
        grad = gradient_energy(e)
        ssim = self._ssim(out) if p.has_ssim else e.new_ones(())
        loss = mse + p.lambda_c * chroma + p.lambda_g / self.den * grad + p.lambda_s * (1 - ssim)
        return Terms(loss, mse, chroma, grad, ssim)
