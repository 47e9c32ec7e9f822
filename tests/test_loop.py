"""The epoch loop alone: checkpoints, stop signals, giving up. No device."""

from __future__ import annotations

import math
import os
import signal
from typing import Any

import pytest

from convtrain.errors import RunError
from convtrain.train.loop import StopFlag, catch_stop_signals, train
from convtrain.train.schedule import MAX_SKIPPED
from convtrain.train.stepper import EpochReport


class FakeSession:
    """Counts epochs and remembers at which ones it was saved."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self.saved: list[int] = []

    def save(self) -> None:
        self.saved.append(self.epoch)


class FakeStepper:
    """Advances by up to ``stride`` epochs; from ``broken`` on every loss is not finite."""

    def __init__(self, session: FakeSession, stride: int = 1, broken: int = 10**9) -> None:
        self.session, self.stride, self.broken = session, stride, broken

    def advance(self, limit: int) -> EpochReport:
        epoch = self.session.epoch = min(limit, self.session.epoch + self.stride)
        skipped = max(0, epoch - self.broken + 1)
        return EpochReport(epoch, 1e-3, skipped, {"loss": math.nan if skipped else 1.0, "mse": 1.0})


def run(session: FakeSession, stepper: FakeStepper, until: int, every: int, watch: Any = None) -> Any:
    return train(session, stepper, until, checkpoint_every=every, stop=StopFlag(), watch=watch or (lambda _: None))


@pytest.mark.parametrize("stride", [1, 7, 1000])
def test_checkpoints_stand_at_multiples_and_at_the_end(stride: int) -> None:
    session = FakeSession(epoch=30)
    result = run(session, FakeStepper(session, stride), 250, 100)
    assert session.saved == [100, 200, 250]
    assert result.epochs == 220


def test_checkpoint_every_zero_saves_once() -> None:
    session = FakeSession()
    run(session, FakeStepper(session), 25, 0)
    assert session.saved == [25]


def test_nothing_to_train_writes_nothing() -> None:
    session = FakeSession(epoch=10)
    result = run(session, FakeStepper(session), 10, 100)
    assert session.saved == []
    assert result.report is None


def test_giving_up_keeps_the_last_checkpoint_and_says_so() -> None:
    session = FakeSession()
    with pytest.raises(RunError, match=r"checkpoint of epoch 20 is kept"):
        run(session, FakeStepper(session, broken=25), 1000, 20)
    assert session.epoch == 25 + MAX_SKIPPED - 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_finishes_the_epoch_and_saves(number: signal.Signals, code: int) -> None:
    session = FakeSession()
    stepper = FakeStepper(session)

    def watch(report: EpochReport) -> None:
        if report.epoch == 5:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with catch_stop_signals() as stop:
        result = train(session, stepper, 100, checkpoint_every=0, stop=stop, watch=watch)
    assert (session.saved, result.epochs, stop.exit_code) == ([5], 5, code)
    assert signal.getsignal(number) is before


def test_a_skipped_update_replaces_no_checkpoint_but_the_last() -> None:
    session = FakeSession()
    run(session, FakeStepper(session, broken=15), 23, 10)
    assert session.saved == [10, 23]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_before_training_ends_at_once(number: signal.Signals, code: int) -> None:
    with catch_stop_signals(), pytest.raises(SystemExit) as caught:
        os.kill(os.getpid(), number)
    assert caught.value.code == code
