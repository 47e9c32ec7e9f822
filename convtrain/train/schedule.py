"""The host's share of an epoch: learning rate, bias corrections, plateau rule, skipped updates.

The state lives in a uniform block that is checkpointed (see ``STATE_DTYPE``), so every value here is
rounded to float32 when stored: a resumed run continues from exactly what an uninterrupted one would hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from convtrain.files.manifest import misfit

COUNTERS = ("epoch", "step", "bad", "skipped")
SCALARS = ("plateau_scale", "ema", "best", "loss_scale")
STATE_DTYPE = np.dtype([*((name, "<u4") for name in COUNTERS), *((name, "<f4") for name in SCALARS)])
"""The state block's first words, in every plan: unsigned counters, then floats."""

ADAM_BETAS = (0.9, 0.999)

MAX_SKIPPED = 16
"""Consecutive epochs with a non-finite loss or gradient after which a run gives up."""


@dataclass(frozen=True)
class ScheduleConfig:
    """The hyper-parameters of DESIGN §2's schedule, by their names in the manifest's ``config``."""

    lr: float
    warmup: int
    ema_decay: float
    improvement: float
    patience: int
    plateau_factor: float
    plateau_floor: float

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ScheduleConfig:
        """Raises ValueError where one is missing or cannot be."""
        made = cls(**{name: config.get(name) for name in cls.__dataclass_fields__})  # type: ignore[arg-type]
        problem = misfit(made) or ("its warmup is less than 1" if made.warmup < 1 else None)
        if problem:
            raise ValueError(problem)
        return made


def learning_rate(config: ScheduleConfig, epoch: int, plateau_scale: float) -> float:
    """lr · min(1, epoch / warmup) · plateau_scale for epoch 1, 2, …"""
    return config.lr * min(1.0, epoch / config.warmup) * plateau_scale


def bias_corrections(step: int) -> tuple[float, float]:
    """1 − β₁ᵗ and 1 − β₂ᵗ of Adam's update number ``step`` (Kingma & Ba 2015, algorithm 1)."""
    return 1.0 - ADAM_BETAS[0] ** step, 1.0 - ADAM_BETAS[1] ** step


def observe(config: ScheduleConfig, state: Any, loss: float, mse: float) -> None:
    """Take in one finished epoch's loss: advance counters, moving average and plateau rule.

    ``state`` is a structured record with :data:`STATE_DTYPE`, changed in place. An epoch whose loss is
    not finite left the weights untouched: it counts as an epoch, but not as an optimiser step.
    """
    state["epoch"] += 1
    if not (math.isfinite(loss) and math.isfinite(mse)):
        state["skipped"] += 1
        state["loss_scale"] *= np.float32(0.5)
        return
    state["skipped"] = 0
    state["step"] += 1
    first = state["step"] == 1
    ema = mse if first else config.ema_decay * float(state["ema"]) + (1.0 - config.ema_decay) * mse
    state["ema"] = ema
    # "best" starts at infinity, which the archive's JSON could not carry: the first epoch always improves.
    if first or float(state["ema"]) < config.improvement * float(state["best"]):
        state["best"] = state["ema"]
        state["bad"] = 0
        return
    state["bad"] += 1
    if state["bad"] > config.patience:
        state["plateau_scale"] = max(config.plateau_floor, float(state["plateau_scale"]) * config.plateau_factor)
        state["bad"] = 0
        state["best"] = state["ema"]
