"""The epoch loop alone: checkpoints, stop signals, giving up. No device."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from convtrain.errors import RunError, Stopped
from convtrain.train.loop import train
from convtrain.train.schedule import MAX_SKIPPED
from convtrain.train.stepper import EpochReport
from convtrain.train.stopping import StopFlag, catch_stop_signals
from workspace import environment


class FakeSession:
    """Counts epochs and remembers which were written. ``slow`` stands for the disk: a write waits for it."""

    def __init__(self, epoch: int = 0, error: Exception | None = None) -> None:
        self.epoch, self.error = epoch, error
        self.saved: list[int] = []
        self.slow = threading.Event()
        self.slow.set()

    def capture(self) -> SimpleNamespace:
        return SimpleNamespace(epoch=self.epoch)

    def write(self, captured: SimpleNamespace) -> None:
        assert threading.current_thread() is not threading.main_thread()
        assert self.slow.wait(10)
        if self.error is not None:
            raise self.error
        self.saved.append(captured.epoch)


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
    with catch_stop_signals(), pytest.raises(Stopped) as caught:
        os.kill(os.getpid(), number)
    assert caught.value.exit_code == code


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with catch_stop_signals() as stop:
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert stop.signal is None


IN_A_C_CALL = """
import ctypes, sys
from convtrain.train.stopping import catch_stop_signals
mutex = ctypes.create_string_buffer(64)
with catch_stop_signals() as stop:
    stop.deferring = sys.argv[1] == "2"
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
    print(flush=True)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


@pytest.mark.parametrize("signals", [1, 2])
def test_a_call_that_never_returns_keeps_nobody_waiting(signals: int) -> None:
    """The first signal ends the process, or the second where the first is only remembered."""
    words = [sys.executable, "-c", IN_A_C_CALL, str(signals)]
    with subprocess.Popen(
        words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(signals):
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (143, "error: Stopped by SIGTERM.\n")


def test_training_goes_on_while_a_checkpoint_is_written() -> None:
    session = FakeSession()
    written_at: list[list[int]] = []

    def watch(report: EpochReport) -> None:
        if report.epoch == 10:
            session.slow.clear()
        if report.epoch == 19:
            written_at.append(list(session.saved))
            session.slow.set()  # the checkpoint of epoch 20 has to wait for this

    run(session, FakeStepper(session), 20, 10, watch)
    assert (written_at, session.saved) == ([[]], [10, 20])


def test_one_checkpoint_is_written_at_a_time() -> None:
    session = FakeSession()
    session.slow.clear()
    threading.Timer(0.1, session.slow.set).start()
    seen: list[int] = []
    run(session, FakeStepper(session), 4, 1, lambda report: seen.append(len(session.saved)))
    assert session.saved == [1, 2, 3, 4]
    assert seen[:2] == [0, 0]
    assert all(later >= epoch - 1 for epoch, later in enumerate(seen))


def test_a_failed_write_ends_training_soon_in_its_own_words() -> None:
    session = FakeSession(error=RunError("no space is left"))

    def watch(report: EpochReport) -> None:
        if report.epoch > 10:
            time.sleep(0.01)  # the thread has to run at some point

    with pytest.raises(RunError, match="no space is left"):
        run(session, FakeStepper(session), 10_000, 10, watch)
    assert 10 < session.epoch < 1000


def test_a_failed_write_of_the_last_checkpoint_is_not_missed() -> None:
    session = FakeSession(error=RunError("no space is left"))
    with pytest.raises(RunError, match="no space is left"):
        run(session, FakeStepper(session), 10, 0)
    assert session.epoch == 10


def test_an_error_of_training_is_the_one_that_is_told() -> None:
    session = FakeSession(error=RunError("no space is left"))
    session.slow.clear()

    def watch(report: EpochReport) -> None:
        if report.epoch == 12:
            session.slow.set()
            raise RunError("device lost")

    with pytest.raises(RunError, match="device lost"):
        run(session, FakeStepper(session), 100, 10, watch)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_leave_before_the_file_is_whole(number: signal.Signals) -> None:
    session = FakeSession()
    session.slow.clear()
    for delay in (0.1, 0.2):  # while the last checkpoint is written
        threading.Timer(delay, os.kill, (os.getpid(), number)).start()
    threading.Timer(0.5, session.slow.set).start()
    with catch_stop_signals() as stop, pytest.raises(Stopped) as caught:
        train(session, FakeStepper(session), 5, checkpoint_every=0, stop=stop, watch=lambda _: None)
    assert (caught.value.exit_code, session.saved) == (128 + number, [5])
