"""Plan ``fused``: the ConvSIREN in fp32 on any device, in few passes and with little traffic.

Of every layer only h and d are kept: h = sin(m) carries the sign of cos(m) in its last bit. Layer 0's convolution is
computed as that of plane waves, and only pixels that the loss can see are computed. The device decides the schedule, so
that epochs can follow each other without the host.
"""

from __future__ import annotations

from convtrain.graph.builder import Graph
from cook.model import ModelConfig
from cook.recipes.fused_scalar.backward import Backward
from cook.recipes.fused_scalar.forward import Forward
from cook.recipes.fused_scalar.loss import Loss
from cook.recipes.fused_scalar.update import Update
from cook.recipes.reference import Reference

__all__ = ["FusedScalar", "not_plane_waves"]


class FusedScalar(Forward, Loss, Backward, Update, Reference):
    """Everything anew but the roles and the average."""

    name = "fused"

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(model)
        self.half = None
        self.graph = Graph(self.name)
        self.prepare()


def not_plane_waves(model: ModelConfig) -> str | None:
    """Why the stem's features are no plane waves as far as the loss sees: the domain ends before. None: they are."""
    reach = model.radius * model.layers
    if model.halo >= reach:
        return None
    return f"what the loss sees reaches {reach} pixels beyond the image, and halo is {model.halo}"
