"""The host's schedule against a plain float64 transcription of the rule, and its corner cases."""

from __future__ import annotations

import math

import numpy as np
import pytest

from convtrain.train.schedule import STATE_DTYPE, ScheduleConfig, bias_corrections, learning_rate, observe

CONFIG = ScheduleConfig(
    lr=2e-3, warmup=20, ema_decay=0.9, improvement=0.995, patience=10, plateau_factor=0.7, plateau_floor=0.01
)


def fresh_state() -> np.ndarray:
    state = np.zeros((), STATE_DTYPE)
    state["plateau_scale"] = state["loss_scale"] = 1.0
    return state


def reference(losses: list[float]) -> list[float]:
    """Plateau scales after each epoch, in float64."""
    scale, ema, best, bad, scales = 1.0, None, math.inf, 0, []
    for mse in losses:
        ema = mse if ema is None else 0.9 * ema + 0.1 * mse
        if ema < 0.995 * best:
            best, bad = ema, 0
        else:
            bad += 1
            if bad > 10:
                scale, bad, best = max(0.01, scale * 0.7), 0, ema
        scales.append(scale)
    return scales


@pytest.mark.parametrize("seed", range(5))
def test_plateau_rule_follows_its_definition(seed: int) -> None:
    random = np.random.default_rng(seed)
    falling = np.exp(-np.arange(400) / random.uniform(10, 60)) * 0.1 + 1e-3
    losses = [float(np.float32(x)) for x in falling * random.uniform(0.8, 1.2, 400)]
    state = fresh_state()
    scales = []
    for mse in losses:
        observe(CONFIG, state, mse, mse)
        scales.append(float(state["plateau_scale"]))
    np.testing.assert_allclose(scales, reference(losses), rtol=1e-6)
    assert min(scales) < 1.0, "the test never reached a plateau"


def test_constant_loss_lowers_the_rate_every_eleven_epochs_down_to_the_floor() -> None:
    state = fresh_state()
    for _ in range(1 + 11):
        observe(CONFIG, state, 0.5, 0.5)
    assert float(state["plateau_scale"]) == pytest.approx(0.7)
    for _ in range(1000):
        observe(CONFIG, state, 0.5, 0.5)
    assert float(state["plateau_scale"]) == pytest.approx(0.01)


def test_warm_up_is_linear_and_ends() -> None:
    assert learning_rate(CONFIG, 1, 1.0) == pytest.approx(1e-4)
    assert learning_rate(CONFIG, 20, 1.0) == pytest.approx(2e-3)
    assert learning_rate(CONFIG, 500, 0.7) == pytest.approx(1.4e-3)


def test_bias_corrections_are_adams() -> None:
    assert bias_corrections(1) == (pytest.approx(0.1), pytest.approx(0.001))
    assert bias_corrections(10)[1] == pytest.approx(1 - 0.999**10)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_epoch_without_a_finite_loss_is_no_step(bad: float) -> None:
    state = fresh_state()
    observe(CONFIG, state, 1.0, 1.0)
    before = state.copy()
    observe(CONFIG, state, bad, 1.0)
    assert (state["epoch"], state["step"], state["skipped"]) == (2, 1, 1)
    assert state["loss_scale"] == 0.5
    assert all(state[name] == before[name] for name in ("bad", "plateau_scale", "ema", "best"))
    observe(CONFIG, state, 1.0, 1.0)
    assert (state["epoch"], state["step"], state["skipped"]) == (3, 2, 0)
