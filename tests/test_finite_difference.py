"""A second witness for the gradients, with no oracle at all: the shaders' loss, differenced numerically."""

from __future__ import annotations

import numpy as np
import pytest

from convtrain.train.session import Session, SessionOptions
from convtrain.train.stepper import read_loss
from oracle.layout import slots
from workspace import SMALL, SMALL_SIZE, Workspace, photograph


def test_the_loss_falls_along_each_slot_as_fast_as_its_gradient_says(workspace: Workspace) -> None:
    workspace.plan = "reference"
    workspace.cook(photograph(*SMALL_SIZE), **SMALL)
    workspace.run(5)  # so that no bias is zero any more
    gradient = workspace.dump(1, "GW")["GW"].astype(np.float64)
    config = workspace.config()
    workspace.run("--fresh", "--until=5")
    weights = workspace.weights(workspace.checkpoint)
    with Session(SessionOptions(workspace.archive.parent, plan="reference")) as session:
        active = tuple(item.index for item in session.plan.passes if item.group in ("forward", "loss"))

        def loss(at: np.ndarray) -> float:
            session.engine.write("WBuf", at.astype(np.float32).tobytes())
            session.engine.run(active)
            return read_loss(session.engine, session.plan)["loss"]

        for slot in slots(config):
            norm = float(np.linalg.norm(gradient[slot.span]))
            direction = np.zeros_like(weights)
            direction[slot.span] = gradient[slot.span] / norm
            slopes = []
            for step in (2e-3, 1e-3):  # both have an error of order step²: combine them
                h = step * min(1.0, 1 / norm)
                slopes.append((loss(weights + h * direction) - loss(weights - h * direction)) / (2 * h))
            assert (4 * slopes[1] - slopes[0]) / 3 == pytest.approx(norm, rel=1e-2), slot.name
