"""Plan ``reference``: the ConvSIREN as 29 + 13·LAYERS passes of scalar fp32 kernels, the oracle of every other plan.

Notation: h_l are the features that enter layer l, d their depthwise correlation, cat = [h, d], m = M_lᵀ cat the
phases of the next features. ``dh``, ``dm``, ``dcat``, ``dd`` are the loss's gradients by h, m, cat and d. Feature
maps are planes, ``[feature][padded pixel]``. A port's number is its binding in the shader, its name the variable's.
"""

from __future__ import annotations

from convtrain.graph.builder import Graph
from cook.recipes.reference.backward import Backward
from cook.recipes.reference.loss import LOSS_FIELDS, Loss
from cook.recipes.reference.update import Update

__all__ = ["Reference"]


class Reference(Loss, Backward, Update):
    """Writes down the passes in the order they run. A plan that computes some of it another way overrides a part."""

    name = "reference"

    def build(self) -> Graph:
        """The finished graph, with its roles."""
        self._forward()
        self._loss()
        self._backward()
        self._adam()
        self._muon()
        averaging = self._average()
        self.graph.bcast(self.weights, self._weight_readers, port=0)
        self.graph.alias(self.gradient).to(*self.gradient_writers)
        self.graph.set_roles(
            weights=self.weights,
            gradient=self.gradient,
            target=self.target,
            output=self.output,
            loss=self.loss,
            loss_fields=LOSS_FIELDS,
            state="state",
            average=[averaging],
            average_window=self.model.average_window,
        )
        return self.graph
