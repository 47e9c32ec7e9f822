"""The console for what is said while a command works, and for results that people read, as far as anybody listens."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console


class StatusConsole(Console):
    """Prints on stderr, or with ``results`` on stdout.

    A stream that goes away (a closed pipe, a full disk under a log) silences it, no more: training must not end
    because nobody reads its progress. A terminal of 0 columns is one of unknown width.
    """

    def __init__(self, *, quiet: bool = False, results: bool = False) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "COLUMNS" or value.strip("0")}
        super().__init__(stderr=not results, highlight=False, soft_wrap=True, quiet=quiet, _environ=environment)

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError:
            self.quiet = True

    def on_broken_pipe(self) -> None:
        """Rich would end the process here."""
        self.quiet = True
