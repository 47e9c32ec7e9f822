"""Measurements in processes of their own: a crash, a hang or exhausted memory costs one row, not the run."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from bench.device_memory import DeviceMemory, driver_reading

ROOT = Path(__file__).resolve().parent.parent
INTERRUPTED = 130  # the exit code after Ctrl-C
LONGEST_REASON = 600  # letters of a failure that are kept: whole sentences, advice and all
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Outcome:
    """What a process gave: its JSON, or why there is none. ``device_memory`` in bytes, None where unknown."""

    data: Any
    error: str | None
    seconds: float
    stderr: str = ""
    device_memory: int | None = None


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with the checkout on Python's path and lines that are not wrapped."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", **(extra or {})}


def heed_signals() -> None:
    """Let SIGTERM and SIGHUP do what Ctrl-C does, so that children end too. One that is ignored (nohup) stays so."""

    def interrupt(number: int, frame: object) -> NoReturn:
        for other in heeded:
            signal.signal(other, signal.SIG_IGN)  # one is enough
        raise KeyboardInterrupt

    heeded = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, interrupt)


class Running:
    """The processes that have not ended, so that an interruption ends those of other threads as well."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alive: set[int] = set()
        self._closed = False

    def start(self, make: Callable[[], subprocess.Popen[str]]) -> subprocess.Popen[str]:
        with self._lock:
            if self._closed:
                raise OSError(errno.ECANCELED, "stopped")
            process = make()
            self._alive.add(process.pid)
            return process

    def forget(self, process: subprocess.Popen[str]) -> None:
        with self._lock:
            self._alive.discard(process.pid)

    def end(self, closed: bool) -> None:
        """End all of them, children included; while ``closed`` no other starts."""
        with self._lock:
            self._closed = closed
            for number in self._alive:
                with suppress(ProcessLookupError):
                    os.killpg(number, signal.SIGKILL)


RUNNING = Running()


def together(ask: Callable[[T], R], of: Iterable[T], jobs: int) -> list[R]:
    """The answers, ``jobs`` at a time. Whatever ends this early ends the processes of all jobs."""
    pool = ThreadPoolExecutor(jobs)
    try:
        return list(pool.map(ask, of))
    except BaseException:
        RUNNING.end(closed=True)
        pool.shutdown(cancel_futures=True)
        RUNNING.end(closed=False)
        raise
    finally:
        pool.shutdown()


class Process:
    """A command that was started. Raises OSError where it cannot be."""

    def __init__(self, command: Sequence[str], *, cwd: Path = ROOT, variables: Mapping[str, str] | None = None) -> None:
        self._started = time.perf_counter()
        self._process = RUNNING.start(
            lambda: subprocess.Popen(
                command,
                cwd=cwd,
                env=environment(variables),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )

    def finish(self, given: str = "", *, timeout: float, parse: bool = True, watch_memory: bool = False) -> Outcome:
        """Give it its input and wait; it is killed, children included, after ``timeout`` seconds.

        With ``parse`` its stdout, or the last line of it, must be JSON.
        """
        process = self._process
        memory = DeviceMemory(driver_reading() if watch_memory else None)
        try:
            out, err = process.communicate(given, timeout=timeout)
            error = None if process.returncode == 0 else _reason(err, process.returncode)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            error = f"not done after {timeout:.0f} s"
        except BaseException:
            self.abandon()
            raise
        finally:
            peak = memory.stop()
            RUNNING.forget(process)
        seconds = time.perf_counter() - self._started
        data = None
        if error is None and parse:
            data = _json(out)
            error = None if data is not None else "it printed no JSON"
        return Outcome(data, error, seconds, err, peak)

    def abandon(self) -> None:
        """End it, children included."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        RUNNING.forget(self._process)


def run(
    command: Sequence[str],
    given: str = "",
    *,
    timeout: float,
    cwd: Path = ROOT,
    parse: bool = True,
    watch_memory: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a command; see ``Process``. ``variables`` are added to the environment."""
    try:
        process = Process(command, cwd=cwd, variables=variables)
    except OSError as refusal:
        return Outcome(None, f"{command[0]}: {refusal.strerror}", 0.0)
    return process.finish(given, timeout=timeout, parse=parse, watch_memory=watch_memory)


def _json(out: str) -> Any:
    """The JSON at the end of a program's output: all of it, or its last line. None when there is none."""
    text = out.strip()
    for start in (0, text.rfind("\n") + 1):
        with suppress(ValueError):
            return json.loads(text[start:])
    return None


def _reason(stderr: str, code: int) -> str:
    """The most telling line of a failed process's messages."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = [line for line in lines if line.split(":")[0].split(".")[-1].endswith(("Error", "Exception", "Failed"))]
    last = (telling or lines or [f"exit code {code}" if code > 0 else f"killed by signal {-code}"])[-1]
    return last if len(last) <= LONGEST_REASON else last[: LONGEST_REASON - 3] + "..."
