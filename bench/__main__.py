"""``python -m bench``: see the package's docstring, and ``--help``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench.contest import Contest, preset_of
from bench.machine import look
from bench.options import parse
from bench.report.files import write


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Measure, print the tables, write the results. 1 where not one measurement succeeded."""
    options = parse()
    say("looking at this machine and measuring its ceilings")
    machine = look(options)
    for note in machine.notes:
        say(f"  {note}")
    with tempfile.TemporaryDirectory(prefix="convtrain-bench-") as folder:
        contest = Contest(machine, options, preset_of(machine, options), Path(folder), say)
        try:
            contest.compare()
            if options.sweep:
                contest.grow()
        except KeyboardInterrupt:
            say("stopped: what was measured so far follows")
        print(write(contest, options.output))
    return 0 if any(row.error is None for row in contest.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
