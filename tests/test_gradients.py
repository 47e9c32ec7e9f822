"""Forward pass, loss terms and every gradient of the fp32 plans against the float64 oracle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from oracle.gradient import loss_and_gradient, output_gradient
from oracle.layout import Array, Config, slots, unpack
from oracle.loss import terms
from oracle.model import forward, kernel
from workspace import Workspace, photograph, relative_error

CASES = {
    "11x14": {"nf": 8, "layers": 1, "ks": 1, "kn": 4},
    "13x11": {"nf": 16, "layers": 2, "ks": 3, "kn": 5},
    "5x9": {"nf": 8, "layers": 3, "ks": 7, "kn": 8},
    "23x17": {"nf": 8, "layers": 4, "ks": 3, "kn": 16},
    "19x26": {"nf": 24, "layers": 2, "ks": 7, "kn": 3},
    "31x12": {"nf": 32, "layers": 3, "ks": 1, "kn": 7},
    "1x12": {"nf": 8, "layers": 1, "ks": 5, "kn": 1},
    "1x1": {"nf": 8, "layers": 2, "ks": 3, "kn": 2},
}
PLANS = [*(("reference", name) for name in CASES), *(("fused", name) for name in ("11x14", "5x9", "19x26", "1x1"))]
BUFFERS = ("GW", "Out", "DlOut", "KBuf", "loss")


@dataclass
class Case:
    """One training step of the product: the weights before it, and what its passes computed."""

    config: Config
    target: Array
    weights: Array
    found: dict[str, Array]


@pytest.fixture(scope="module", params=PLANS, ids="-".join)
def trained(
    request: pytest.FixtureRequest, driver: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Case, Case]:
    """The first epoch, from the seeds, and the sixth, from weights whose biases have all moved."""
    plan, size = request.param
    width, height = map(int, size.split("x"))
    picture = photograph(width, height, seed=len(size))
    place = Workspace(tmp_path_factory.mktemp(size), driver, plan)
    place.cook(picture, **CASES[size])
    config, target = place.config(), picture / 255.0
    seeds = place.weights(place.archive)
    first = place.dump(1, *BUFFERS)
    place.run(4)
    later = place.weights(place.checkpoint)
    sixth = place.dump(1, *BUFFERS)
    return Case(config, target, seeds, first), Case(config, target, later, sixth)


@pytest.fixture(params=["seeds", "trained"])
def case(request: pytest.FixtureRequest, trained: tuple[Case, Case]) -> Case:
    return trained[request.param == "trained"]


def test_output(case: Case) -> None:
    expected = forward(case.weights, case.config)
    assert case.found["Out"].shape == expected.shape
    assert np.abs(case.found["Out"] - expected).max() <= 1e-5


def test_kernel(case: Case) -> None:
    expected = kernel(unpack(case.weights, case.config), case.config)
    np.testing.assert_allclose(case.found["KBuf"], expected, atol=1e-5)


def test_loss_terms(case: Case) -> None:
    expected = terms(forward(case.weights, case.config), case.target, case.config)
    names = ("loss", "mse", "chroma", "grad", "ssim")
    for name, found in zip(names, case.found["loss"], strict=False):
        assert found == pytest.approx(float(expected[name]), rel=1e-6, abs=1e-6), name


def test_output_gradient(case: Case) -> None:
    expected = output_gradient(forward(case.weights, case.config), case.target, case.config)
    assert relative_error(case.found["DlOut"], expected) <= 1e-4


def test_weight_gradients_slot_by_slot(case: Case) -> None:
    _, expected = loss_and_gradient(case.weights, case.target, case.config)
    errors = {
        slot.name: relative_error(case.found["GW"][slot.span], expected[slot.span]) for slot in slots(case.config)
    }
    assert max(errors.values()) <= 1e-4, errors
