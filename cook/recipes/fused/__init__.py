"""Plan ``fused-f16``: the ConvSIREN on fp16 maps and matrix units, two passes a layer forward and three backward.

Of every layer only h and d are kept: h = sin(m) carries the sign of cos(m) in a spare bit. Gradients in fp16 carry the
scale 3·H·W·loss_scale, which is divided out where shares of the weight gradients are added up in fp32. Layer
0's convolution is computed as that of plane waves. The device decides the schedule, so that epochs can follow each
other without the host.
"""

from __future__ import annotations

from convtrain.graph.builder import Graph
from cook.model import ModelConfig
from cook.recipes.fused.backward import Backward
from cook.recipes.fused.forward import Forward
from cook.recipes.fused.loss import Loss
from cook.recipes.fused.update import Update
from cook.recipes.fused_scalar import not_plane_waves
from cook.recipes.reference import Reference

__all__ = ["Fused", "unfit"]

FEATURES = 128  # the one NF whose tiles fill registers and shared memory as the matrix kernels expect


class Fused(Forward, Loss, Backward, Update, Reference):
    """Every part anew; the roles as in the reference."""

    name = "fused-f16"

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(model)
        self.half = None
        self.graph = Graph(self.name, storages=("f16",))
        self.prepare()


def unfit(model: ModelConfig) -> str | None:
    """Why the matrix kernels do not suit this model; None where they do."""
    if model.nf != FEATURES:
        return f"its kernels are made for nf={FEATURES}, and nf is {model.nf}"
    if not 1 <= model.radius <= 4:
        return f"its kernels are made for ks=3 to 9, and ks is {model.ks}"
    if model.layers < 2:
        return "its kernels are made for two layers and more"
    return not_plane_waves(model)
