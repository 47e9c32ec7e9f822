"""The training loop: epochs, checkpoints, and a clean stop when asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from convtrain.errors import RunError
from convtrain.train.checkpoints import CheckpointWriter
from convtrain.train.schedule import MAX_SKIPPED
from convtrain.train.session import Session
from convtrain.train.stepper import EpochReport, Stepper
from convtrain.train.stopping import StopFlag


@dataclass(frozen=True)
class LoopResult:
    """``report`` is None when no epoch ran; ``seconds`` is the wall time of the epochs alone."""

    epochs: int
    seconds: float
    report: EpochReport | None


def train(
    session: Session,
    stepper: Stepper,
    until: int,
    *,
    checkpoint_every: int,
    stop: StopFlag,
    watch: Callable[[EpochReport], None],
) -> LoopResult:
    """Advance to epoch ``until`` or to a stop signal, and leave a checkpoint of the last epoch.

    A checkpoint is also written at every multiple of ``checkpoint_every`` epochs (0: only at the end), the device going
    on meanwhile; all of them are on disk when this returns or raises.
    Raises RunError when training cannot recover from non-finite values; the last good checkpoint stays.
    """
    first = epoch = session.epoch
    stop.deferring = True
    report: EpochReport | None = None
    training = 0.0
    with CheckpointWriter(session) as checkpoints:
        while epoch < until and stop.signal is None:
            mark = _next_checkpoint(epoch, until, checkpoint_every)
            started = time.perf_counter()
            report = stepper.advance(mark)
            training += time.perf_counter() - started
            epoch = report.epoch
            watch(report)
            checkpoints.check()
            if report.skipped >= MAX_SKIPPED:
                raise RunError(
                    f"Training diverged: the last {report.skipped} epochs, up to {epoch}, had a non-finite loss or "
                    f"gradient. {kept(checkpoints.wait())} Cook with a lower lr (--set lr=…)."
                )
            # A skipped update may be the first of a divergence: its epoch replaces no checkpoint but the last.
            if stop.signal is not None or epoch == until or (epoch == mark and not report.skipped):
                checkpoints.begin()
    stop.deferring = False
    return LoopResult(epoch - first, training, report)


def kept(epoch: int) -> str:
    """What a failed run leaves."""
    return f"The checkpoint of epoch {epoch} is kept." if epoch else "No checkpoint was written."


def _next_checkpoint(epoch: int, until: int, every: int) -> int:
    """The next epoch after ``epoch`` that must be written."""
    return until if every < 1 else min(until, (epoch // every + 1) * every)
