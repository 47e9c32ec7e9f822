"""The one place where a failure becomes a sentence on stderr and an exit code."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback

from convtrain.cli.interrupts import INTERRUPTED, SENTENCE
from convtrain.errors import ConvtrainError

DONE, FAILED, BAD_INPUT = 0, 1, 2

_USER_MISTAKES = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.ELOOP,
}


def report(error: BaseException) -> int:
    """Say on stderr what went wrong and return the exit code. With CONVTRAIN_DEBUG=1 the traceback comes first."""
    if isinstance(error, SystemExit):  # typer's own way out, for a closed pipe
        return error.code if isinstance(error.code, int) else FAILED
    if isinstance(error, BrokenPipeError):  # whoever read the output, as in `convtrain info … | head`, has left
        _discard_output()
        return FAILED
    code, sentence = explain(error)
    if os.environ.get("CONVTRAIN_DEBUG", "") not in ("", "0"):
        traceback.print_exception(type(error), error, error.__traceback__)
    _say(sentence)
    return code


def explain(error: BaseException) -> tuple[int, str]:
    """The exit code and the sentence for an exception."""
    if isinstance(error, ConvtrainError):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        return INTERRUPTED, SENTENCE
    if hasattr(error, "format_message"):
        # A usage error. Typer brings its own copy of click or imports click, by version; both classes have this.
        return BAD_INPUT, _usage(error)
    if isinstance(error, OSError) and error.errno is not None:
        where = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, str | bytes) else ""
        code = BAD_INPUT if error.errno in _USER_MISTAKES else FAILED
        return code, f"{error.strerror or type(error).__name__}{where}."
    if isinstance(error, MemoryError):
        return FAILED, "Not enough memory on this machine. Use a smaller image or preset."
    what = " ".join(str(error).split())[:300].rstrip(".")
    return FAILED, f"Unexpected {type(error).__name__}: {what}. Set CONVTRAIN_DEBUG=1 for the traceback."


def prepare_output() -> None:
    """Let no character and no closed stream be a reason to fail: what a terminal cannot show becomes ``?``."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the end)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace" if name == "stdout" else "backslashreplace")


def flush_output() -> None:
    """Write out what stdout still holds, so that a full disk or a closed pipe behind it is noticed."""
    sys.stdout.flush()


def _usage(error: BaseException) -> str:
    message = " ".join(error.format_message().split()).rstrip(".")  # type: ignore[attr-defined]
    if getattr(error, "option_name", "")[1:2].isdigit():  # meant as a number, as in `run -5`
        message += ", and no number here may be negative"
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "convtrain"
    return f"{message}. See `{command} --help`."


def _say(sentence: str) -> None:
    try:
        print(f"error: {sentence}", file=sys.stderr, flush=True)
    except OSError:
        _discard_output()  # nobody can be told


def _discard_output() -> None:
    """Send what is still buffered nowhere: the interpreter flushes it at exit and would complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
