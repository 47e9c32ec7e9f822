"""``python -m convtrain``, and what the command ``convtrain`` calls."""

import sys

from convtrain.cli.interrupts import ignore_from_now_on, leave_at_once, leaving_on_interrupt


def main() -> int:
    """Load and run the command line and return the exit code. Ctrl-C at any moment gives a sentence and 130."""
    try:
        with leaving_on_interrupt():
            from convtrain.cli.app import main as run
        code = run()
        ignore_from_now_on()
    except KeyboardInterrupt:  # between two guarded stretches
        leave_at_once()
    return code


if __name__ == "__main__":
    sys.exit(main())
