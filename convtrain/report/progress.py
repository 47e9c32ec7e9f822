"""What a person sees while training runs: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from convtrain.train.stepper import EpochReport

LINES = 20
"""Plain lines of a whole run, about."""

PERIOD = 15.0
"""Seconds after which a plain line is due whatever the epoch: a slow device still shows that it lives."""

PATIENCE = 2.0
"""Seconds without a word before one is said about what takes them."""
COMPILING = "compiling kernels for this device: only its driver knows how long (they are kept for the next run)"


@contextmanager
def patience(console: Console) -> Iterator[None]:
    """Say what it must be that takes so long, if the block takes long."""
    timer = threading.Timer(PATIENCE, console.print, [COMPILING])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Progress:
    """Shows epoch, PSNR of that epoch's output, learning rate, ms per epoch and time left, on stderr.

    A context manager whose ``update`` is called with each report. ``compiled``: the driver had to compile kernels for
    this run, and may go on doing so in the first epoch.
    """

    def __init__(self, first: int, until: int, console: Console, *, compiled: bool = False) -> None:
        self._until, self._console, self._compiled = until, console, compiled
        self._base: tuple[int, float] | None = None  # epoch and time of the first report
        self._live: Live | None = None
        self._started = self._shown = time.perf_counter()
        self._waiting = ExitStack()
        self._step = max(1, (until - first) // LINES)
        self._next = first + 1

    def __enter__(self) -> Progress:
        self._started = self._shown = time.perf_counter()
        if self._compiled:
            self._waiting.enter_context(patience(self._console))
        if self._console.is_terminal and not self._console.quiet:
            self._live = Live(console=self._console, refresh_per_second=8)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waiting.close()
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def update(self, report: EpochReport) -> None:
        self._waiting.close()
        if self._base is None:
            self._base = report.epoch, time.perf_counter()
        if self._live is not None:
            self._live.update(Text(self._line(report)))
            return
        now = time.perf_counter()
        if report.epoch < self._next and report.epoch < self._until and now - self._shown < PERIOD:
            return
        self._shown = now
        self._next = (report.epoch // self._step + 1) * self._step
        self._console.print(self._line(report))

    def _line(self, report: EpochReport) -> str:
        skipped = f"  {report.skipped} updates skipped (not finite)" if report.skipped else ""
        return (
            f"epoch {report.epoch}/{self._until}  PSNR {_decibels(report.loss['mse'])}  lr {report.lr:.2e}  "
            f"{self._pace(report.epoch)}{skipped}"
        )

    def _pace(self, epoch: int) -> str:
        """Time per epoch and time left. The first report stands alone: some drivers compile on first use."""
        now = time.perf_counter()
        assert self._base is not None
        first, since = self._base
        if epoch == first:
            return f"{now - self._started:.1f} s" + ", kernels compiled by the driver included" * self._compiled
        per_epoch = (now - since) / (epoch - first)
        return f"{_milliseconds(1e3 * per_epoch)} ms/epoch  {_clock(per_epoch * (self._until - epoch))} left"


def _decibels(mse: float) -> str:
    if not math.isfinite(mse):
        return "not finite"
    return "exact" if mse <= 0.0 else f"{-10.0 * math.log10(mse):.2f} dB"


def _milliseconds(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return (
        f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}" if whole >= 3600 else f"{whole // 60}:{whole % 60:02}"
    )
