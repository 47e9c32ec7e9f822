"""What an epoch must do at least: the yardstick for shares and for the bound."""

from __future__ import annotations

from bench.problem import Problem


def matrix_flops(problem: Problem) -> float:
    """Operations of the mixing products: forward, gradient of features, gradient of weights, in every layer."""
    return 3.0 * problem.layers * 2 * problem.pixels * 2 * problem.nf * problem.nf


def depthwise_flops(problem: Problem) -> float:
    """Operations of the depthwise convolutions, likewise three times a layer."""
    return 3.0 * problem.layers * 2 * problem.pixels * problem.nf * problem.ks * problem.ks


def least_bytes(problem: Problem, element: int = 2) -> float:
    """Traffic that no fusion of passes avoids.

    Each feature map (the stem's and every layer's) is written once and read twice, forward and backward, and its
    gradient is written and read once; ``element`` is the bytes of a feature.
    """
    return 5.0 * (problem.layers + 1) * problem.pixels * problem.nf * element
