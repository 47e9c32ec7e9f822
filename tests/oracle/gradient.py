"""Gradients by reverse-mode automatic differentiation."""

from __future__ import annotations

from autograd import grad, value_and_grad

from .layout import Array, Config
from .loss import terms
from .model import forward


def loss_of_weights(weights: Array, target: Array, config: Config) -> Array:
    """L as a function of the flat weight vector."""
    return terms(forward(weights, config), target, config)["loss"]


def loss_and_gradient(weights: Array, target: Array, config: Config) -> tuple[float, Array]:
    """L and GW, the gradient of L itself, in WBuf's layout."""
    value, gradient = value_and_grad(loss_of_weights)(weights, target, config)
    return float(value), gradient


def output_gradient(out: Array, target: Array, config: Config) -> Array:
    """DlOut, the gradient of L by the picture (H, W, 3)."""
    return grad(lambda picture: terms(picture, target, config)["loss"])(out)
