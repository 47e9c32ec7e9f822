"""Whole epochs against the oracle: Adam, Muon, schedule and weight average together."""

from __future__ import annotations

import numpy as np

from oracle.layout import slots
from oracle.training import Trainer
from workspace import SMALL, SMALL_SIZE, Workspace, photograph, relative_error


def test_five_epochs(workspace: Workspace, driver: dict[str, str]) -> None:
    picture = photograph(*SMALL_SIZE)
    workspace.env, workspace.plan = driver, "reference"
    workspace.cook(picture, **SMALL, warmup=3)
    oracle = Trainer(workspace.config(), picture / 255.0, workspace.weights(workspace.archive))
    workspace.run(5)
    for _ in range(5):
        oracle.epoch()
    raw, averaged = workspace.weights(workspace.checkpoint), workspace.weights(workspace.model)
    for slot in slots(oracle.config):
        assert relative_error(raw[slot.span], oracle.weights[slot.span]) <= 1e-3, slot.name
        assert relative_error(averaged[slot.span], oracle.averaged()[slot.span]) <= 1e-3, slot.name


def test_the_model_carries_the_mean_of_the_last_ten_epochs(cooked: Workspace) -> None:
    cooked.plan = "reference"
    raw = []
    for _ in range(12):
        cooked.run(1)
        raw.append(cooked.weights(cooked.checkpoint))
    np.testing.assert_allclose(cooked.weights(cooked.model), np.mean(raw[-10:], axis=0), rtol=1e-5, atol=1e-7)
