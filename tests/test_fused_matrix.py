"""Plan `fused` against `reference` on a device with matrix units: every gradient, on fresh and on trained weights."""

from __future__ import annotations

import numpy as np
import pytest

from convtrain.gpu.live.instance import choose_device
from convtrain.graph.types import MatrixShape
from workspace import Workspace, errors_against_scalar, photograph, relative_error

SHAPES = {MatrixShape(16, n, 16, "f16", "f16", "f32", "f32") for n in (8, 16)}
SETTINGS = {"nf": 128, "layers": 3, "ks": 7, "kn": 8}
MUON_TOLERANCE = 0.1  # of a step: fp16 operands lose the directions in which the gradient is smallest


@pytest.fixture
def cooked_both(workspace: Workspace) -> Workspace:
    if not set(choose_device().matrices) >= SHAPES:
        pytest.skip("no 16x16x16 and 16x8x16 matrix units on this machine")
    workspace.cook(photograph(70, 45), **SETTINGS)
    return workspace


WANTED = 2e-2  # the worst slot of GW


# A picture so small averages little: 5.3e-3 was seen here on fresh weights, on an H200. Trained weights amplify
# rounding, see docs/fused.md: up to 3.5e-2 after 100 epochs.
@pytest.mark.parametrize(("before", "most"), [(0, 1e-2), (100, 6e-2)])
def test_gradients_agree(cooked_both: Workspace, before: int, most: float) -> None:
    place = cooked_both
    place.plan = "fused-f16"
    if before:
        place.run(before)
    errors = errors_against_scalar(place)
    assert errors.pop("Out") < 5e-3
    worst = max(errors.values())
    assert worst < most, errors
    if worst >= WANTED:
        pytest.xfail(f"{worst:.1e} on trained weights, where {WANTED} is wanted")


def test_interrupted_training_gives_the_same_bytes(cooked_both: Workspace) -> None:
    place = cooked_both
    place.plan = "fused-f16"
    twin = place.twin()
    place.run(30)
    twin.run(11)
    twin.run(19)
    assert place.snapshot() == twin.snapshot()


def test_muon_takes_five_newton_schulz_steps(cooked_both: Workspace) -> None:
    """The first step of every M against float64, from the gradient that the plan itself reports."""
    place = cooked_both
    place.plan = "fused-f16"
    before = place.weights(place.archive)
    dumped = place.dump(1, "GW", "WBuf")
    gradient, after = (dumped[name].astype(np.float64).ravel() for name in ("GW", "WBuf"))
    config = place.info(place.archive)["config"]
    for slot in place.info(place.archive)["weights"]["slots"]:
        if not slot["name"].startswith("mix."):
            continue
        part = slice(slot["offset"], slot["offset"] + int(np.prod(slot["shape"])))
        x = gradient[part].reshape(slot["shape"]).T
        x = x / (np.linalg.norm(x) + 1e-7)
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        step = (before[part] - after[part]) / (config["muon_scale"] * config["lr"] / config["warmup"])
        assert relative_error(step, x.T.ravel()) < MUON_TOLERANCE, slot["name"]
