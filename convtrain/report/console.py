"""The console for everything that is said while a command works: stderr, as far as anybody listens."""

from __future__ import annotations

from typing import Any

from rich.console import Console


class StatusConsole(Console):
    """Prints on stderr. A stream that goes away (a closed pipe, a full disk under a log) silences it, no more.

    Training must not end because nobody reads its progress.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(stderr=True, highlight=False, soft_wrap=True, quiet=quiet)

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError:
            self.quiet = True

    def on_broken_pipe(self) -> None:
        """Rich would end the process here."""
        self.quiet = True
