"""Schedule, whole epochs, weight average."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .gradient import loss_and_gradient
from .layout import Array, Config, slots
from .loss import mse
from .model import forward
from .optimisers import adam, muon


@dataclass
class Schedule:
    """The learning rate: linear warm-up, and a cut whenever the smoothed error stops improving."""

    config: Config
    epoch: int = 0
    plateau_scale: float = 1.0
    ema: float | None = None
    best: float = float("inf")
    bad: int = 0

    def begin_epoch(self) -> float:
        """Count the epoch and give its learning rate."""
        self.epoch += 1
        return self.config.lr * min(1.0, self.epoch / self.config.warmup) * self.plateau_scale

    def end_epoch(self, error: float) -> None:
        """Take in the epoch's mse, measured before its update."""
        c = self.config
        self.ema = error if self.ema is None else c.ema_decay * self.ema + (1 - c.ema_decay) * error
        if self.ema < c.improvement * self.best:
            self.best, self.bad = self.ema, 0
            return
        self.bad += 1
        if self.bad > c.patience:
            self.plateau_scale = max(c.plateau_floor, c.plateau_factor * self.plateau_scale)
            self.bad, self.best = 0, self.ema


@dataclass
class Trainer:
    """Everything that an epoch changes. ``weights`` is the flat WBuf; ``history`` ends with the newest weights."""

    config: Config
    target: Array
    weights: Array
    schedule: Schedule = field(init=False)
    m: Array = field(init=False)
    v: Array = field(init=False)
    momentum: Array = field(init=False)
    history: list[Array] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.weights = self.weights.astype(np.float64)
        self.schedule = Schedule(self.config)
        self.m, self.v, self.momentum = (np.zeros_like(self.weights) for _ in range(3))

    def epoch(self) -> None:
        """Forward, loss, gradient, update: Muon for the mix matrices, Adam for all else."""
        lr = self.schedule.begin_epoch()
        error = float(mse(forward(self.weights, self.config) - self.target))
        loss, gradient = loss_and_gradient(self.weights, self.target, self.config)
        for slot in slots(self.config):
            at = slot.span
            if slot.name.startswith("mix."):
                p, g, b = (array[at].reshape(slot.shape) for array in (self.weights, gradient, self.momentum))
                muon(p, g, b, lr=lr, scale=self.config.muon_scale)
            else:
                adam(self.weights[at], gradient[at], self.m[at], self.v[at], lr=lr, step=self.schedule.epoch)
        self.schedule.end_epoch(error)
        self.losses.append(loss)
        self.history = [*self.history, self.weights.copy()][-self.config.average_window :]

    def averaged(self) -> Array:
        """The weights that the model package carries: the mean after each of the last ``average_window`` epochs."""
        if not self.history:
            return self.weights.copy()
        return np.mean(self.history, axis=0)
