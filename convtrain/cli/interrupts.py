"""Ctrl-C outside a command's own work: while its modules load and while its end is reported. Imports little itself."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any, NoReturn

from convtrain.errors import Stopped

INTERRUPTED = 130
"""The exit code after SIGINT: 128 plus its number, as shells report it."""
SENTENCE = "Interrupted."


def spoken(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with Stopped for KeyboardInterrupt, which typer would turn into an exit without a word."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return command(*arguments, **options)
        except KeyboardInterrupt as error:
            raise Stopped(signal.SIGINT) from error

    return run


def leave_at_once() -> NoReturn:
    """Say so and end the process, with no exception that could surface as a traceback somewhere on its way."""
    os.write(2, f"error: {SENTENCE}\n".encode())
    os._exit(INTERRUPTED)


@contextmanager
def leaving_on_interrupt() -> Iterator[None]:
    """Let SIGINT end the process at once, for a block in which nothing is held or half written."""
    with _replaced(lambda number, frame: leave_at_once()):
        yield


@contextmanager
def deaf_to_interrupt() -> Iterator[None]:
    """Ignore SIGINT in the block, so that its exit code stands."""
    with _replaced(signal.SIG_IGN):
        yield


def ignore_from_now_on() -> None:
    """Ignore SIGINT until the process ends: its exit code is decided."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _replaced(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    # Only Python's own handler is replaced: a caller may want SIGINT ignored, as nohup does, or handle it itself.
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
