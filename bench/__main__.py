"""``python -m bench``: see the package's docstring, and ``--help``."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from bench.contest import Contest, preset_of
from bench.machine import look
from bench.options import Options, parse
from bench.processes import INTERRUPTED, RUNNING, heed_signals
from bench.report.files import draw, keep, write
from bench.report.page import page
from bench.results import load

T = TypeVar("T")


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def draw_again(options: Options, file: Path) -> int:
    """Tables and plots from an earlier run, into ``--output``, but no JSON. 2 where the file is none of ours."""
    try:
        results = load(file)
        page(results).encode()  # what a table cannot show is none either; nothing is written so far
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        say(f"{file} does not hold results of this benchmark ({type(error).__name__}: {error})")
        return 2
    if sentence := unusable(options.output):
        say(sentence)
        return 2
    print(draw(results, options.output, file))
    return 0


def measure(options: Options, work: Path) -> int:
    """Measure, print the tables, write the results. 1 where not one measurement succeeded, 130 after Ctrl-C.

    Until one did no file is touched: those of an earlier run are worth more.
    """
    say("looking at this machine and measuring its ceilings")
    machine = look(options)
    for note in machine.notes:
        say(f"  {note}")
    contest = Contest(machine, options, preset_of(machine, options), work, say)
    interrupted = False
    try:
        contest.prepare()
        if options.prepare:
            return 0
        # Results are kept as they come: whatever ends this process costs one measurement. A full disk costs none.
        contest.keep = lambda results: (
            results.measured and attempt(lambda: keep(results, options.output), options.output)
        )
        contest.compare()
        if options.sweep:
            contest.grow()
    except KeyboardInterrupt:
        interrupted = True
        say("stopped")
    finally:
        contest.close()
    if not contest.results.measured:
        say(f"nothing was measured: {options.output} is left as it was")
        return INTERRUPTED if interrupted else 1
    written = attempt(lambda: write(contest.results, options.output), options.output)
    print(written or page(contest.results))
    if interrupted:
        return INTERRUPTED
    return 0 if written and any(row.error is None for row in contest.results.rows) else 1


def attempt(to_write: Callable[[], T], folder: Path) -> T | None:
    """Its result; a sentence and None where it cannot be written, as on a full disk."""
    try:
        return to_write()
    except OSError as error:
        say(f"  results cannot be written to {folder}: {error.strerror}")
        return None


def unusable(folder: Path) -> str | None:
    """A sentence where the folder cannot be made, or nothing be written there. Leaves what it finds, and no folder."""
    made: list[Path] = []
    try:
        for place in reversed((folder, *folder.parents)):
            if not place.is_dir():
                place.mkdir()
                made.append(place)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"{folder} cannot be used as a folder for what is written: {error.strerror}"
    finally:
        with suppress(OSError):
            for place in reversed(made):
                place.rmdir()


def main(arguments: Sequence[str] | None = None) -> int:
    """With the command line's arguments, or these; gives the exit code."""
    options = parse(arguments)
    heed_signals()
    try:
        return follow(options)
    except KeyboardInterrupt:
        RUNNING.end(closed=False)
        say("stopped")
        return INTERRUPTED
    except OSError as error:
        RUNNING.end(closed=False)
        say(f"stopped: {error.strerror or error}" + (f" ({error.filename})" if error.filename else ""))
        return 1


def follow(options: Options) -> int:
    """Do what the options say; gives the exit code."""
    if options.plot:
        return draw_again(options, options.plot)
    for folder in filter(None, (options.work, None if options.prepare else options.output)):
        if sentence := unusable(folder):
            say(sentence)
            return 2
    if options.work is None:
        with tempfile.TemporaryDirectory(prefix="convtrain-bench-") as temporary:
            return measure(options, Path(temporary))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(options.work / "inductor")
    return measure(options, options.work)


if __name__ == "__main__":
    sys.exit(main())
