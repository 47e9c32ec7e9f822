"""From weights to picture, features pixel-major: one row of NF features per pixel, which is channels-last."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.problem import Problem
from bench.pytorch.weights import Weights

HEAD_ROWS = 8
"""The head's three outputs are padded to eight: matrix units want aligned rows."""


def coordinates(problem: Problem, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pixel centres x (columns) and y (rows) of the domain, float32: 0 in the middle, ±1 at the longer side."""
    rows, columns = problem.domain
    scale = 2 / max(problem.height, problem.width)
    x = (torch.arange(columns, dtype=torch.float64) - problem.halo + 0.5 - problem.width / 2) * scale
    y = (torch.arange(rows, dtype=torch.float64) - problem.halo + 0.5 - problem.height / 2) * scale
    return x.float().to(device), y.float().to(device)


def tap_places(problem: Problem, device: torch.device) -> Tensor:
    """(KS·KS, 2): u and v of each tap of the depthwise kernel, u fastest, in [-1, 1]."""
    r = problem.radius
    taps = torch.arange(-r, r + 1, dtype=torch.float32) / max(r, 1)
    return torch.stack([taps.repeat(problem.ks), taps.repeat_interleave(problem.ks)], 1).to(device)


def depthwise_taps(w: Weights, places: Tensor) -> Tensor:
    """The depthwise kernel (NF, KS·KS), float32, drawn by its own small sine network."""
    hidden = torch.sin(10 * ((w.kern_w1.unsqueeze(0) * places.unsqueeze(1)).sum(2) + w.kern_b1))  # (KS·KS, KN)
    return (w.kern_w2.unsqueeze(1) * hidden.unsqueeze(0)).sum(2) + w.kern_b2.unsqueeze(1)


def padded_head(w: Weights) -> Tensor:
    """The head's weights (8, NF), zero beyond the three colours."""
    return F.pad(w.head_w, (0, 0, 0, HEAD_ROWS - w.head_w.shape[0]))


class PixelMajor:
    """The model with features (pixels, NF) and `conv2d` for the depthwise part."""

    def __init__(self, problem: Problem, dtype: torch.dtype, device: torch.device) -> None:
        self.problem, self.dtype = problem, dtype
        x, y = coordinates(problem, device)
        self.x = x.repeat(len(y)).unsqueeze(1)
        self.y = y.repeat_interleave(len(x)).unsqueeze(1)
        self.places = tap_places(problem, device)

    def __call__(self, w: Weights) -> Tensor:
        """The picture as planes (3, H, W), float32."""
        p, dtype = self.problem, self.dtype
        rows, columns = p.domain
        taps = depthwise_taps(w, self.places).to(dtype).view(p.nf, 1, p.ks, p.ks)
        stem = 30 * w.stem_w
        z = torch.addcmul(torch.addcmul(30 * w.stem_b, self.x, stem[:, 0]), self.y, stem[:, 1])
        h = torch.sin(z).to(dtype)
        biases = (w.dw_b.view(1, 1, p.nf) @ w.mix[:, p.nf :]).to(dtype)  # the depthwise bias, through each mix
        mix = w.mix.to(dtype)
        for layer in range(p.layers):
            image = h.view(1, rows, columns, p.nf).permute(0, 3, 1, 2)
            d = F.conv2d(image, taps, padding=p.radius, groups=p.nf).permute(0, 2, 3, 1).reshape(-1, p.nf)
            m = torch.addmm(biases[layer].view(-1), h, mix[layer, : p.nf])
            h = torch.sin(torch.addmm(m, d, mix[layer, p.nf :]))
        out = torch.mm(h, padded_head(w).to(dtype).t()).view(rows, columns, HEAD_ROWS)
        crop = out[p.halo : p.halo + p.height, p.halo : p.halo + p.width, :3]
        return crop.permute(2, 0, 1).float().contiguous() + w.head_b.view(3, 1, 1)
