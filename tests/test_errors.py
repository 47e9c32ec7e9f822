"""Every failure ends in one sentence on stderr and the right exit code; a traceback only when asked for."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from convtrain import __version__
from convtrain.cli import app
from convtrain.cli.app import COMMANDS, main
from convtrain.cli.failures import explain
from convtrain.errors import ConvtrainError, InputError, RunError
from toy_resources import make_all
from workspace import command, environment


def call(*arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), env=environment(env), capture_output=True, text=True, timeout=60)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], int]:
    """Runs ``convtrain info`` with a command that raises this."""

    def run(error: BaseException) -> int:
        def info() -> None:
            raise error

        monkeypatch.setattr(app, "_load", lambda name: info)
        return main(["info"])

    return run


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (InputError("No such file: a.res."), 2, "error: No such file: a.res.\n"),
        (RunError("The disk is full."), 1, "error: The disk is full.\n"),
        (ConvtrainError("Neither."), 1, "error: Neither.\n"),
        (PermissionError(errno.EACCES, "Permission denied", "a.png"), 2, "error: Permission denied (a.png).\n"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", b"a/b"), 2, "error: Not a directory (a/b).\n"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "error: No space left on device.\n"),
        (MemoryError(), 1, "error: Not enough memory on this machine. Use a smaller image or preset.\n"),
        (KeyboardInterrupt(), 130, "error: Interrupted.\n"),
        (typer.Abort(), 130, "error: Interrupted.\n"),
        (typer.BadParameter("no such thing"), 2, "error: Invalid value: no such thing. See `convtrain info --help`.\n"),
        (
            ZeroDivisionError("division\nby zero"),
            1,
            "error: Unexpected ZeroDivisionError: division by zero. Set CONVTRAIN_DEBUG=1 for the traceback.\n",
        ),
        (
            ValueError("a sentence."),
            1,
            "error: Unexpected ValueError: a sentence. Set CONVTRAIN_DEBUG=1 for the traceback.\n",
        ),
        (RecursionError("x" * 9999), 1, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_sentences_and_codes(
    failing: Callable[[BaseException], int],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    text: str | None,
) -> None:
    found = failing(error)
    printed = capsys.readouterr()
    assert found == code
    assert printed.out == ""
    assert printed.err == text or (text is None and len(printed.err) < 500)
    assert "Traceback" not in printed.err


def test_a_traceback_on_request(
    failing: Callable[[BaseException], int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONVTRAIN_DEBUG", "1")
    assert failing(InputError("No such file: a.res.")) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback")
    assert printed.endswith("error: No such file: a.res.\n")
    monkeypatch.setenv("CONVTRAIN_DEBUG", "0")
    failing(InputError("Again."))
    assert capsys.readouterr().err == "error: Again.\n"


def test_exit_codes_of_commands_pass_through(failing: Callable[[BaseException], int]) -> None:
    assert failing(typer.Exit(143)) == 143
    assert failing(typer.Exit(0)) == 0


def test_sentences_of_errors_without_text() -> None:
    assert explain(OSError(errno.EIO, ""))[1] == "OSError."
    assert explain(ValueError())[0] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["paint"], "No such command 'paint'"),
        (["info"], "Missing argument"),
        (["info", "--jsn", "a"], "--jsn"),
        (["info", "a", "b"], "unexpected extra argument"),
        (["--frobnicate"], "--frobnicate"),
        (["info", "missing.res"], "No such file: missing.res."),
        (["export", "missing.res"], "Nothing to write"),
        (["info", ""], "Cannot read"),
    ],
)
def test_bad_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert words in printed.err
    assert printed.err.count("\n") == 1


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"convtrain {__version__}\n"
    assert main(["--help"]) == 0
    help_text = capsys.readouterr().out
    assert all(f"  {name} " in help_text for name in COMMANDS)
    assert main([]) == 2
    assert capsys.readouterr().out == help_text
    assert main(["info", "-h"]) == 0
    assert "--json" in capsys.readouterr().out


def loaded_modules(*arguments: str) -> set[str]:
    script = (
        f"import sys; from convtrain.cli.app import main; main({list(arguments)!r}); "
        "print(*sys.modules, file=open('modules.txt', 'w'))"
    )
    subprocess.run([sys.executable, "-c", script], env=environment(), check=True, stdout=subprocess.DEVNULL)
    try:
        return set(Path("modules.txt").read_text().split())
    finally:
        os.unlink("modules.txt")


def test_only_the_command_that_is_called_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = make_all(tmp_path)["model"]
    heavy = {"slangpy", "cook", "vulkan", "PIL", "numpy", "convtrain.cli.run", "convtrain.cli.cook", "rich"}
    assert not loaded_modules("--help") & heavy
    assert not loaded_modules("info", str(path), "--json") & heavy


def test_a_reader_that_leaves_is_no_accident(tmp_path: Path) -> None:
    path = make_all(tmp_path)["training"]
    for option in ([], ["--json"]):
        with subprocess.Popen(
            command("info", path, *option),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait() == 1


def test_output_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    path = make_all(tmp_path)["training"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command("info", path, "--json"), env=environment(), stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "error: No space left on device.\n"


@pytest.mark.parametrize("closed", ["1", "2"])
def test_a_closed_stream_is_no_failure(tmp_path: Path, closed: str) -> None:
    path = make_all(tmp_path)["training"]
    shell = ["sh", "-c", f'"$@" {closed}>&-', "sh", *command("info", path)]
    done = subprocess.run(shell, env=environment(), capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert bool(done.stdout) == (closed == "2")


def test_a_terminal_without_these_characters(tmp_path: Path) -> None:
    done = call("info", make_all(tmp_path)["training"], env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "2?3" in done.stdout  # 2×3


def test_the_module_runs_as_the_command() -> None:
    done = call("info", "missing.res")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: No such file: missing.res.\n")
    assert call("info", "missing.res", env={"CONVTRAIN_DEBUG": "1"}).stderr.startswith("Traceback")
    assert "Usage: convtrain " in call("--help").stdout


def test_names_that_are_not_text(tmp_path: Path) -> None:
    done = subprocess.run(
        [*(part.encode() for part in command("info")), bytes(tmp_path) + b"/\xff.res"],
        env=environment({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
        capture_output=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: No such file")


@pytest.mark.parametrize("number", ["-5", "-50"])
def test_a_negative_number_of_epochs_is_no_option(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", number]) == 2
    said = "error: No such option: -5, and no number here may be negative. See `convtrain run --help`.\n"
    assert capsys.readouterr().err == said
    assert main(["run", "-x"]) == 2
    assert capsys.readouterr().err == "error: No such option: -x. See `convtrain run --help`.\n"
