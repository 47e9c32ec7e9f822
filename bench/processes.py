"""Measurements in processes of their own: a crash, a hang or exhausted memory costs one row, not the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.device_memory import DeviceMemory, driver_reading

ROOT = Path(__file__).resolve().parent.parent


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


class Process:
    """A command that was started. Raises OSError where it cannot be."""

    def __init__(self, command: Sequence[str], *, cwd: Path = ROOT, variables: Mapping[str, str] | None = None) -> None:
        self._started = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
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
    return last if len(last) <= 200 else last[:197] + "..."
