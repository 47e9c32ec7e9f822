"""The model on feature-major tiles, its depthwise convolution as batched matrix products.

A tile of R×C pixels of one feature depends on a patch of (R + KS - 1)×(C + KS - 1) pixels, linearly: one
(patch × tile) matrix per feature, block-Toeplitz, filled from the KS×KS taps and the same for every tile. So the
convolution of all tiles is one batched product, which matrix units do many times faster than a direct
depthwise convolution, though it multiplies by many zeros. Features stay in tile order throughout, as the other
operators work pixel by pixel; only patches are gathered across tiles.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bench.problem import Problem
from bench.pytorch.network import coordinates, depthwise_taps, padded_head, tap_places
from bench.pytorch.weights import Weights

TILE = 16
"""Rows of a tile; its columns are such that a patch's row is a multiple of eight, for aligned products."""


class Tiling:
    """Where tiles, patches and taps lie, as index tensors on the device."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        ks, reach = problem.ks, problem.ks - 1
        rows, columns = problem.domain
        tile_rows = TILE
        tile_columns = -(-(TILE + reach) // 8) * 8 - reach
        self.down, self.across = -(-rows // tile_rows), -(-columns // tile_columns)
        self.tiles, self.tile = self.down * self.across, tile_rows * tile_columns
        self.patch = (tile_rows + reach) * (tile_columns + reach)
        # Pixel (i, j) of the domain for each place of a tile, and where a pixel is stored in tile order.
        top = torch.arange(self.down).view(-1, 1, 1, 1) * tile_rows
        left = torch.arange(self.across).view(1, -1, 1, 1) * tile_columns
        i = (top + torch.arange(tile_rows).view(1, 1, -1, 1)).expand(self.down, self.across, tile_rows, tile_columns)
        j = (left + torch.arange(tile_columns).view(1, 1, 1, -1)).expand_as(i)
        self.i, self.j = i.reshape(self.tiles, -1).to(device), j.reshape(self.tiles, -1).to(device)
        self.inside = (self.i < rows) & (self.j < columns)

        r = problem.radius
        pi = top - r + torch.arange(tile_rows + reach).view(1, 1, -1, 1)
        pj = left - r + torch.arange(tile_columns + reach).view(1, 1, 1, -1)
        valid = (pi >= 0) & (pi < rows) & (pj >= 0) & (pj < columns)
        self._columns, self._tile_rows, self._tile_columns = columns, tile_rows, tile_columns
        # One 32-bit index says it all, -1 outside: it is read anew for every feature.
        source = torch.where(valid, self._stored(pi, pj), -1)
        self.patch_source = source.reshape(-1).to(torch.int32).to(device)

        # Entry (patch place, tile place) of the matrix is the tap at their distance, or zero (index KS·KS).
        pi, pj = torch.arange(tile_rows + reach), torch.arange(tile_columns + reach)
        v = pi.view(-1, 1, 1, 1) - torch.arange(tile_rows).view(1, 1, -1, 1)
        u = pj.view(1, -1, 1, 1) - torch.arange(tile_columns).view(1, 1, 1, -1)
        near = (v >= 0) & (v < ks) & (u >= 0) & (u < ks)
        tap = torch.where(near, v * ks + u, ks * ks)
        self.tap = tap.reshape(-1).to(device)
        # The other way round: the entries that hold each tap, (KS·KS, tile).
        order = torch.argsort(tap.reshape(-1), stable=True)[: ks * ks * self.tile]
        self.entries = order.to(device)

    def image(self, h: Tensor) -> Tensor:
        """(N, tiles·tile) to (N, rows, columns), places beyond the domain included."""
        grid = h.view(-1, self.down, self.across, self._tile_rows, self._tile_columns).permute(0, 1, 3, 2, 4)
        return grid.reshape(-1, self.down * self._tile_rows, self.across * self._tile_columns)

    def _stored(self, i: Tensor, j: Tensor) -> Tensor:
        tile = i.div(self._tile_rows, rounding_mode="floor") * self.across
        tile = tile + j.div(self._tile_columns, rounding_mode="floor")
        return tile * self.tile + i % self._tile_rows * self._tile_columns + j % self._tile_columns

    def patches(self, h: Tensor) -> Tensor:
        """(NF, tiles·tile) to (NF, tiles, patch), zero outside the domain."""
        gathered = h.index_select(1, self.patch_source.clamp(min=0))
        return torch.where(self.patch_source < 0, 0, gathered).view(-1, self.tiles, self.patch)

    def matrix(self, taps: Tensor) -> Tensor:
        """Taps (NF, KS·KS) to matrices (NF, patch, tile)."""
        padded = torch.cat([taps, taps.new_zeros(len(taps), 1)], 1)
        return padded.index_select(1, self.tap).view(-1, self.patch, self.tile)

    def gather_taps(self, matrix: Tensor) -> Tensor:
        """The transpose of ``matrix``: for each tap the sum of its entries, float32 (NF, KS·KS)."""
        found = matrix.reshape(len(matrix), -1).index_select(1, self.entries)
        return found.view(len(matrix), -1, self.tile).sum(2, dtype=torch.float32)


class Depthwise(torch.autograd.Function):
    """Features (NF, tiles·tile) correlated with their taps.

    ``matrix`` and ``flipped`` are made from ``taps`` once for all layers; the gradient goes to ``taps``.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, taps: Tensor, matrix: Tensor, flipped: Tensor, tiling: Tiling) -> Tensor:
        patches = tiling.patches(h)
        ctx.save_for_backward(patches, flipped)
        ctx.tiling = tiling
        return torch.bmm(patches, matrix).view_as(h)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        patches, flipped = ctx.saved_tensors
        tiling = ctx.tiling
        grad = grad.contiguous()
        dh = torch.bmm(tiling.patches(grad), flipped).view(len(grad), tiling.tiles, tiling.tile)
        dmatrix = torch.bmm(patches.mT, grad.view_as(dh))
        # Places of the last tiles that lie outside the domain read as zero in the forward pass.
        return torch.where(tiling.inside, dh, 0).view_as(grad), tiling.gather_taps(dmatrix), None, None, None


class FeatureMajor:
    """The model with features (NF, pixels) in tile order."""

    def __init__(self, problem: Problem, dtype: torch.dtype, device: torch.device) -> None:
        self.problem, self.dtype = problem, dtype
        self.tiling = Tiling(problem, device)
        x, y = coordinates(problem, device)
        # Places outside the domain may have any coordinate: nothing reads their features.
        self.x = x[self.tiling.j.clamp(max=len(x) - 1)].reshape(1, -1)
        self.y = y[self.tiling.i.clamp(max=len(y) - 1)].reshape(1, -1)
        self.places = tap_places(problem, device)

    def __call__(self, w: Weights) -> Tensor:
        """The picture as planes (3, H, W), float32."""
        p, dtype, tiling = self.problem, self.dtype, self.tiling
        taps = depthwise_taps(w, self.places)
        with torch.no_grad():
            matrix = tiling.matrix(taps.to(dtype))
            flipped = tiling.matrix(taps.flip(1).to(dtype))
        stem = 30 * w.stem_w
        h = torch.sin(30 * w.stem_b.unsqueeze(1) + stem[:, :1] * self.x + stem[:, 1:] * self.y).to(dtype)
        biases = (w.dw_b.view(1, 1, p.nf) @ w.mix[:, p.nf :]).to(dtype)
        mix = w.mix.to(dtype)
        for layer in range(p.layers):
            d = Depthwise.apply(h, taps, matrix, flipped, tiling)
            m = torch.addmm(torch.mm(mix[layer, : p.nf].t(), h), mix[layer, p.nf :].t(), d)
            h = torch.sin(m + biases[layer].view(-1, 1))
        image = tiling.image(torch.mm(padded_head(w).to(dtype), h)[:3])
        crop = image[:, p.halo : p.halo + p.height, p.halo : p.halo + p.width]
        return crop.float() + w.head_b.view(3, 1, 1)
