"""Plan ``fused-f16``: the ConvSIREN on fp16 maps and matrix units, two passes a layer forward and two backward.

Of every layer only h and d are kept: h = sin(m) carries the sign of cos(m) in a spare bit. Gradients in fp16 carry the
scale 3·H·W·loss_scale, which ``gather`` divides out where shares of the weight gradients are added up in fp32. Layer
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
from cook.recipes.reference import Reference

__all__ = ["Fused", "is_fusable"]

FEATURES = 128  # the one NF whose tiles fill registers and shared memory as the matrix kernels expect


class Fused(Forward, Loss, Backward, Update, Reference):
    """Every part anew; the roles as in the reference."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(model)
        self.half = None
        self.graph = Graph("fused-f16", storages=("f16",))
        self.prepare()


def is_fusable(model: ModelConfig) -> bool:
    """Whether the fused kernels suit this model; nothing beyond the domain may play a part in what the loss sees."""
    reaches = model.halo >= model.radius * model.layers
    return model.nf == FEATURES and 1 <= model.radius <= 4 and model.layers >= 2 and reaches
