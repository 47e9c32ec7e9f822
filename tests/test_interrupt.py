"""Ctrl-C at awkward moments: a sentence and exit code 130, never a traceback, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workspace import environment

AT_IMPORT = """
import os, runpy, signal, sys
class Trap:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Trap())
sys.argv = ["convtrain", "info", "nothing.res"]
runpy.run_module("convtrain", run_name="__main__")
"""
WHILE_REPORTING = """
import os, signal, sys
from convtrain import __main__
from convtrain.cli import app, failures
def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)
say = failures._say
failures._say = lambda sentence: (interrupt(), say(sentence))
app.flush_output = interrupt
sys.argv = ["convtrain", "--version"]
code = __main__.main()
interrupt()
sys.exit(code)
"""


def run_code(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", ["convtrain.cli.app", "typer", "convtrain.cli.info", "zstandard"])
def test_while_modules_load(name: str) -> None:
    result = run_code(AT_IMPORT.format(name=name))
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "error: Interrupted.\n")


def test_again_while_the_first_is_reported_and_after() -> None:
    result = run_code(WHILE_REPORTING)
    assert (result.returncode, result.stderr) == (130, "error: Interrupted.\n")


def test_a_caller_that_ignores_it_is_respected() -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)" + AT_IMPORT.format(name="typer")
    assert run_code(code).returncode == 2


WORKERS = """
import sys
from pathlib import Path
from cook.jobs import Job, compile_all
text = '[shader("compute")] [numthreads(1, 1, 1)] void main() {}'
compile_all([Job(text, "main", f"{n}.slang", "spirv_1_3") for n in range(10000)], workers=2)
"""


def children(pid: int) -> list[int]:
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


@pytest.mark.parametrize("delay", [0.0, 1.0])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_compiler_workers_end_silently_with_their_parent(delay: float, number: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", WORKERS], env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while len(children(parent.pid)) < 2:
        assert parent.poll() is None
        time.sleep(0.002)
    time.sleep(delay)
    os.killpg(parent.pid, number)
    _, errors = parent.communicate(timeout=20)  # ends when the last process that holds stderr does
    assert errors.count("Traceback") == (1 if number == signal.SIGINT else 0), errors
