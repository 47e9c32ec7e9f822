"""SIGINT and SIGTERM while a run works: the epoch in flight is finished, or the process ends, whatever it is doing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from convtrain.errors import Stopped

NUMBERS = (signal.SIGINT, signal.SIGTERM)
GRACE = 3.0
"""Seconds that a process which is to end has for it. A driver may compile for minutes in one call, and no exception
gets through to anybody until it returns."""


class StopFlag:
    """What SIGINT and SIGTERM do: while ``deferring``, the first is remembered, so that the epoch in flight can finish.

    At any other time, and the second time, they end the process: Stopped is raised, and after ``GRACE`` seconds there
    is no more waiting for who should catch it. Files are replaced whole or not at all, so nothing is lost.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.deferring = False
        self._leaving = False
        self._over = threading.Event()

    def _catch(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is None and self.deferring:
            self.signal = number
        elif not self._leaving:
            self._leaving = True
            raise Stopped(number)

    def _watch(self, source: int) -> None:
        """A thread of its own: hears of signals at once, also while the main thread is inside a C function."""
        heard = 0
        while number := os.read(source, 1):
            if number[0] not in NUMBERS:
                continue
            heard += 1
            if (heard == 1 and self.deferring) or self._over.wait(GRACE):
                continue
            os.write(2, f"error: {Stopped(number[0])}\n".encode())
            os._exit(128 + number[0])

    @property
    def exit_code(self) -> int:
        """128 plus the signal, as shells report it (130 for SIGINT, 143 for SIGTERM)."""
        return 128 + (self.signal or 0)


@contextmanager
def catch_stop_signals() -> Iterator[StopFlag]:
    """Let a flag handle SIGINT and SIGTERM while the block runs; one that is ignored, as under nohup, stays so."""
    flag = StopFlag()
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    watcher = threading.Thread(target=flag._watch, args=(source,), daemon=True)
    woken = signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
    watcher.start()
    heeded = [number for number in NUMBERS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, flag._catch) for number in heeded}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(woken)
        flag._over.set()
        os.close(sink)
        watcher.join()
        os.close(source)
