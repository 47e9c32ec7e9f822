"""One epoch from the host's side: write the controls, submit, read the loss, decide what comes next."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

from convtrain.gpu.live.engine import Engine
from convtrain.graph.types import Plan
from convtrain.train.schedule import ScheduleConfig, bias_corrections, learning_rate, observe
from convtrain.train.state import device_state


@dataclass(frozen=True)
class EpochReport:
    """What the host knows after an epoch. ``loss`` maps the plan's loss fields to their values."""

    epoch: int
    lr: float
    skipped: int  # consecutive epochs, up to this one, whose update was not applied
    loss: dict[str, float]


BATCH_SECONDS = 0.1
"""How long one batch of epochs may take that the host does not look at: progress and Ctrl-C wait for it."""


class Run(Protocol):
    """Executes these passes in order, ``repeat`` times, and waits, as ``Engine.run`` does."""

    def __call__(self, active: tuple[int, ...], repeat: int = 1) -> None: ...


class Stepper(Protocol):
    """Advances training. ``advance`` runs between one epoch and ``limit`` and reports the last one."""

    def advance(self, limit: int) -> EpochReport: ...


def set_control(engine: Engine, plan: Plan, name: str, value: float) -> None:
    """Write one control to every uniform field that carries it."""
    for control in plan.roles.controls.get(name, ()):
        engine.uniform(control.index)[control.field] = value


def read_loss(engine: Engine, plan: Plan) -> dict[str, float]:
    """The reduced loss terms, a handful of floats in mapped memory."""
    values = engine.host(plan.roles.loss)
    return {name: float(value) for name, value in zip(plan.roles.loss_fields, values, strict=False)}


def training_passes(plan: Plan) -> tuple[int, ...]:
    """The passes of a training epoch."""
    return tuple(item.index for item in plan.passes if not item.skip)


class HostStepper:
    """The host decides the schedule: one submit per epoch."""

    def __init__(self, engine: Engine, plan: Plan, schedule: ScheduleConfig, state: Any, run: Run) -> None:
        self._engine, self._plan, self._schedule, self._state, self._run = engine, plan, schedule, state, run
        self._active = training_passes(plan)

    def advance(self, limit: int) -> EpochReport:
        engine, plan, state = self._engine, self._plan, self._state
        epoch = int(state["epoch"]) + 1
        lr = learning_rate(self._schedule, epoch, float(state["plateau_scale"]))
        beta1, beta2 = bias_corrections(int(state["step"]) + 1)
        set_control(engine, plan, "lr", lr)
        set_control(engine, plan, "beta1_correction", beta1)
        set_control(engine, plan, "beta2_correction", beta2)
        set_control(engine, plan, "ring_slot", (epoch - 1) % plan.roles.average_window)
        self._run(self._active)
        loss = read_loss(engine, plan)
        observe(self._schedule, state, loss["loss"], loss["mse"])
        return EpochReport(epoch, lr, int(state["skipped"]), loss)


class DeviceStepper:
    """The device decides the schedule: epochs go to it in batches, with nothing for the host to do in between.

    The size of a batch follows the time that the last one took; it has no influence on any result.
    """

    def __init__(self, engine: Engine, plan: Plan, schedule: ScheduleConfig, run: Run) -> None:
        self._engine, self._plan, self._schedule, self._run = engine, plan, schedule, run
        self._active = training_passes(plan)
        self._epoch = int(device_state(engine, plan)["epoch"])
        self._batch = 1

    def advance(self, limit: int) -> EpochReport:
        count = min(self._batch, limit - self._epoch)
        started = time.perf_counter()
        self._run(self._active, count)
        seconds = (time.perf_counter() - started) / count
        # At most doubled: the first epochs include what drivers put off until then.
        self._batch = max(1, min(2 * self._batch, int(BATCH_SECONDS / seconds)))
        state = device_state(self._engine, self._plan)
        self._epoch = int(state["epoch"])
        lr = learning_rate(self._schedule, self._epoch, float(state["plateau_scale"]))
        return EpochReport(self._epoch, lr, int(state["skipped"]), read_loss(self._engine, self._plan))
