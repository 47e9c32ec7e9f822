"""The schedule on the device: no epoch waits for the host to read a number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.problem import Problem


@dataclass
class State:
    """Scalars that epochs carry on, one-element tensors on the device."""

    epoch: Tensor  # int64, epochs done
    step: Tensor  # float32, updates applied
    bad: Tensor  # float32
    plateau_scale: Tensor
    ema: Tensor
    best: Tensor
    loss_scale: Tensor

    @classmethod
    def first(cls, device: torch.device) -> State:
        def scalar(value: float) -> Tensor:
            return torch.full((1,), value, dtype=torch.float32, device=device)

        zero = torch.zeros(1, dtype=torch.int64, device=device)
        return cls(zero, scalar(0), scalar(0), scalar(1), scalar(0), scalar(torch.inf), scalar(1))

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(vars(self).values())


def learning_rate(problem: Problem, state: State) -> Tensor:
    """The rate of the epoch that has just begun (``state.epoch`` counts it)."""
    return problem.lr * (state.epoch / problem.warmup).clamp(max=1) * state.plateau_scale


def observe(problem: Problem, state: State, mse: Tensor, applied: Tensor) -> None:
    """Take in the epoch's mse, in place; where the update was not ``applied``, only halve the loss scale."""
    first = state.step == 0
    ema = torch.where(first, mse, problem.ema_decay * state.ema + (1 - problem.ema_decay) * mse)
    improved = first | (ema < problem.improvement * state.best)
    bad = torch.where(improved, 0, state.bad + 1)
    cut = bad > problem.patience
    lowered = (problem.plateau_factor * state.plateau_scale).clamp(min=problem.plateau_floor)
    best = torch.where(improved | cut, ema, state.best)
    state.plateau_scale.copy_(torch.where(applied & cut, lowered, state.plateau_scale))
    state.bad.copy_(torch.where(applied, torch.where(cut, 0, bad), state.bad))
    state.best.copy_(torch.where(applied, best, state.best))
    state.ema.copy_(torch.where(applied, ema, state.ema))
    state.loss_scale.copy_(torch.where(applied, state.loss_scale, 0.5 * state.loss_scale))
    state.step.add_(applied)
