"""The two kinds of failure a person sees: one or two plain sentences, and an exit code."""

from __future__ import annotations

import signal


class ConvtrainError(Exception):
    """Base of both. The message says what is wrong, with which file or device, and what to do."""

    exit_code = 1


class InputError(ConvtrainError):
    """Bad usage or bad input (exit code 2): nothing was written, nothing was lost."""

    exit_code = 2


class RunError(ConvtrainError):
    """A failure at run time (exit code 1): a lost device, a full disk, a diverged training."""


class Stopped(ConvtrainError):
    """A signal stopped a command (exit code 128 plus its number, as shells report it)."""

    def __init__(self, number: int) -> None:
        super().__init__("Interrupted." if number == signal.SIGINT else f"Stopped by {signal.Signals(number).name}.")
        self.exit_code = 128 + number
