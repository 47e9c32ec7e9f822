"""The PyTorch contender of the benchmark trains the very same model: checked against the float64 oracle."""

from __future__ import annotations

import numpy as np
import pytest

from bench.modes import CPU_MODES, GPU_MODES, Mode
from bench.problem import Problem
from cook.model import ModelConfig
from cook.seeds import draw_weights
from oracle.gradient import loss_and_gradient
from oracle.layout import Config, slots
from oracle.training import Trainer as OracleTrainer
from workspace import photograph, relative_error

torch = pytest.importorskip("torch")

from bench.pytorch.trainer import Trainer  # noqa: E402  (needs torch)

PROBLEM = Problem(height=21, width=34, halo=8, nf=16, layers=2, ks=7, kn=4, warmup=3)
TARGET = photograph(34, 21).astype(np.float32) / np.float32(255)
FORMULATIONS = ("eager-fp32", "eager-fp32-toeplitz")


def trainer(mode: str, epochs: int = 5, problem: Problem = PROBLEM) -> Trainer:
    return Trainer(problem, TARGET, Mode.parse(mode), torch.device("cpu"), epochs)


def oracle() -> OracleTrainer:
    config = Config.of(vars(PROBLEM))
    return OracleTrainer(config, TARGET.astype(np.float64), PROBLEM.first_weights().astype(np.float64))


def test_first_weights_are_those_that_cook_packs() -> None:
    constants = {name: value for name, value in vars(PROBLEM).items() if name != "seed"}
    expected = draw_weights(ModelConfig(**constants, seed=3))
    np.testing.assert_array_equal(Problem(**constants, seed=3).first_weights(), expected)


@pytest.mark.parametrize("mode", FORMULATIONS)
def test_gradient(mode: str) -> None:
    reference = oracle()
    loss, expected = loss_and_gradient(reference.weights, reference.target, reference.config)
    contender = trainer(mode)
    found = contender.gradient()[1].numpy()
    terms = contender.loss(contender.picture(contender.weights))
    assert float(terms.loss.detach()) == pytest.approx(loss, rel=1e-5)
    for slot in slots(reference.config):
        assert relative_error(found[slot.span], expected[slot.span]) <= 1e-4, slot.name


@pytest.mark.parametrize("mode", FORMULATIONS)
def test_five_epochs(mode: str) -> None:
    reference, contender = oracle(), trainer(mode)
    contender.train(5)
    for _ in range(5):
        reference.epoch()
    raw, averaged = contender.weights.detach().numpy(), contender.averaged().numpy()
    for slot in slots(reference.config):
        assert relative_error(raw[slot.span], reference.weights[slot.span]) <= 1e-3, slot.name
        assert relative_error(averaged[slot.span], reference.averaged()[slot.span]) <= 1e-3, slot.name


def test_the_learning_rate_falls_where_the_oracle_lowers_it() -> None:
    contender = trainer("eager-fp32")
    errors = [*np.geomspace(0.1, 0.01, 30), *np.full(40, 0.01), np.nan, *np.full(40, 0.01)]
    schedule = oracle().schedule
    from bench.pytorch.schedule import learning_rate, observe

    for error in errors:
        contender.state.epoch.add_(1)
        if np.isfinite(error):
            expected = schedule.begin_epoch()
            schedule.end_epoch(error)
        applied = torch.tensor([bool(np.isfinite(error))])
        if np.isfinite(error) and contender.state.epoch > PROBLEM.warmup:
            assert float(learning_rate(PROBLEM, contender.state)) == pytest.approx(expected, rel=1e-5)
        observe(PROBLEM, contender.state, torch.tensor(error, dtype=torch.float32), applied)
    assert float(contender.state.loss_scale) == 0.5
    assert float(contender.state.step) == len(errors) - 1


@pytest.mark.parametrize("mode", ["eager-bf16", "eager-fp16"])
def test_lower_precisions_stay_close(mode: str) -> None:
    expected = oracle()
    _, gradient = loss_and_gradient(expected.weights, expected.target, expected.config)
    contender = trainer(mode)
    found = contender.gradient()[1].numpy() / contender._gradient_scale
    for slot in slots(expected.config):
        assert relative_error(found[slot.span], gradient[slot.span]) <= 0.1, slot.name


def test_an_update_that_is_not_finite_is_skipped() -> None:
    contender = trainer("eager-fp16")
    before = contender.weights.detach().clone()
    with torch.no_grad():
        contender._update(torch.tensor(0.1), torch.full_like(before, torch.inf))
    assert torch.equal(contender.weights.detach(), before)
    assert float(contender.state.loss_scale) == 0.5


@pytest.mark.parametrize("name", [*GPU_MODES, *CPU_MODES, "graph-autotune-bf16-toeplitz"])
def test_mode_names_are_read_back(name: str) -> None:
    assert Mode.parse(name).name == name


@pytest.mark.parametrize("name", ["", "eager", "eager-int8", "graph-bf16-fft", "graph-bf16-toeplitz-more"])
def test_unknown_modes_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no mode"):
        Mode.parse(name)
