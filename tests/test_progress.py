"""The progress lines: what they say, and that nobody has to read them."""

from __future__ import annotations

import io
import os
import time

import pytest

from convtrain.report.console import StatusConsole
from convtrain.report.progress import Progress
from convtrain.train.stepper import EpochReport


def report(epoch: int, mse: float = 0.01) -> EpochReport:
    return EpochReport(epoch, 1e-3, 0, {"loss": mse, "mse": mse})


def test_lines_name_epoch_psnr_rate_and_time_left() -> None:
    console = StatusConsole()
    console.file = out = io.StringIO()
    with Progress(0, 2, console, compiled=True) as progress:
        progress.update(report(1))
        progress.update(report(2))
    first, second = out.getvalue().splitlines()
    assert first.startswith("epoch 1/2  PSNR 20.00 dB  lr 1.00e-03")
    assert first.endswith("s, kernels compiled by the driver included")
    assert "ms/epoch" in second
    assert second.endswith("0:00 left")


def test_nothing_is_said_of_compiling_where_the_cache_held_all() -> None:
    console = StatusConsole()
    console.file = out = io.StringIO()
    with Progress(0, 2, console) as progress:
        progress.update(report(1))
    assert out.getvalue().endswith(" s\n")


@pytest.mark.parametrize("kind", ["pipe", "full"])
def test_a_stream_that_goes_away_stops_nothing(kind: str) -> None:
    if kind == "pipe":
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open("/dev/full", os.O_WRONLY)
    console = StatusConsole()
    console.file = open(writer, "w", encoding="utf-8", buffering=1)  # noqa: SIM115 (closing it would raise)
    with Progress(0, 40, console) as progress:
        for epoch in range(1, 41):
            progress.update(report(epoch))
    assert console.quiet


def test_a_long_wait_for_the_first_epoch_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convtrain.report.progress.PATIENCE", 0.01)
    console = StatusConsole()
    console.file = out = io.StringIO()
    with Progress(0, 2, console, compiled=True):
        time.sleep(0.2)
    assert out.getvalue().startswith("compiling kernels")
