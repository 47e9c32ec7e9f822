"""The ConvSIREN: from weights to a picture.

Feature maps are arrays (features, rows, columns) over the domain, which is the image plus its halo.
"""

from __future__ import annotations

import autograd.numpy as np

from .layout import Array, Config, unpack


def coordinates(config: Config, offset: tuple[float, float] = (0.0, 0.0)) -> Array:
    """Pixel centres (2, rows, columns): x right, y down, 0 in the image's middle, in units of half its longer side."""
    rows, columns = config.domain
    scale = 2 / max(config.height, config.width)
    j = np.arange(columns) - config.halo
    i = np.arange(rows) - config.halo
    x = (j + 0.5 + offset[0] - config.width / 2) * scale
    y = (i + 0.5 + offset[1] - config.height / 2) * scale
    return np.stack([np.broadcast_to(x, (rows, columns)), np.broadcast_to(y[:, None], (rows, columns))])


def kernel(w: dict[str, Array], config: Config) -> Array:
    """The depthwise kernel (features, KS, KS), indexed [feature, v + r, u + r]: a sine network of the tap's place."""
    r = config.radius
    taps = np.arange(-r, r + 1) / max(r, 1)
    uv = np.stack([np.tile(taps, config.ks), np.repeat(taps, config.ks)])  # u runs fastest
    a = np.sin(10 * (w["kern.w1"] @ uv + w["kern.b1"][:, None]))
    return (w["kern.w2"] @ a + w["kern.b2"][:, None]).reshape(config.nf, config.ks, config.ks)


def depthwise(h: Array, taps: Array, config: Config) -> Array:
    """Correlate each feature map with its kernel, zero outside the domain: out[i, j] = Σ taps(u, v)·h[i + v, j + u]."""
    r = config.radius
    rows, columns = config.domain
    padded = np.pad(h, ((0, 0), (r, r), (r, r)), "constant")
    out = np.zeros_like(h)
    for v in range(config.ks):
        for u in range(config.ks):
            out = out + taps[:, v, u, None, None] * padded[:, v : v + rows, u : u + columns]
    return out


def forward(weights: Array, config: Config, offset: tuple[float, float] = (0.0, 0.0)) -> Array:
    """The picture (H, W, 3) that these weights draw, unclamped, sampled ``offset`` pixels off the pixel centres."""
    w = unpack(weights, config)
    taps = kernel(w, config)

    def per_pixel(matrix: Array, features: Array) -> Array:
        return np.einsum("of,fij->oij", matrix, features)

    z = 30 * (per_pixel(w["stem.w"], coordinates(config, offset)) + w["stem.b"][:, None, None])
    h = np.sin(z)
    for layer in range(config.layers):
        d = depthwise(h, taps, config) + w["dw.b"][:, None, None]
        cat = np.concatenate([h, d])
        h = np.sin(per_pixel(w[f"mix.{layer}"].T, cat))
    crop = h[:, config.halo : config.halo + config.height, config.halo : config.halo + config.width]
    out = per_pixel(w["head.w"], crop) + w["head.b"][:3, None, None]
    return np.transpose(out, (1, 2, 0))
