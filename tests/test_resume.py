"""Interrupting a run in every way there is changes nothing about where it arrives."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from workspace import Workspace

EPOCHS = 120


def replaced(path: Path) -> int:
    """A number that changes whenever the file is replaced."""
    return path.stat().st_mtime_ns if path.exists() else 0


def wait_for_checkpoint(place: Workspace, process: subprocess.Popen[str]) -> None:
    """Wait until the process, just started, has written a checkpoint."""
    before, deadline = replaced(place.checkpoint), time.monotonic() + 120
    while replaced(place.checkpoint) == before and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture(scope="module")
def uninterrupted(tiny_archive: bytes, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Every file after one run of EPOCHS epochs."""
    place = Workspace(tmp_path_factory.mktemp("uninterrupted"))
    place.receive(tiny_archive)
    place.run(EPOCHS)
    return place.snapshot()


def test_two_runs_are_one_run(cooked: Workspace, uninterrupted: dict[str, bytes]) -> None:
    cooked.run(3)
    cooked.run(EPOCHS - 3)
    assert cooked.snapshot() == uninterrupted


def test_until_stops_at_that_epoch_and_stays_there(cooked: Workspace, uninterrupted: dict[str, bytes]) -> None:
    cooked.run(5)
    cooked.run("--until", EPOCHS)
    assert cooked.snapshot() == uninterrupted
    for goal, said in (
        (EPOCHS, f"epoch {EPOCHS}: nothing"),
        (EPOCHS - 1, f"epoch {EPOCHS}, past {EPOCHS - 1}: nothing"),
    ):
        told = cooked.convtrain("run", "--until", goal).stderr
        assert f"Already at {said} to train. --fresh starts over." in told
        assert cooked.snapshot() == uninterrupted


def test_checkpointing_often_changes_nothing(cooked: Workspace, uninterrupted: dict[str, bytes]) -> None:
    cooked.run(EPOCHS, "--checkpoint-every", 7)
    assert cooked.snapshot() == uninterrupted


@pytest.mark.parametrize("how", ["run 0", "nStep=0"])
def test_training_nothing_exports_the_same_bytes(how: str, cooked: Workspace) -> None:
    cooked.run(3)
    before = cooked.snapshot()
    cooked.model.unlink()
    cooked.picture.unlink()
    if how == "run 0":
        cooked.run(0)
    else:
        cooked.run(env={"nStep": "0"})
    assert cooked.snapshot() == before


def test_fresh_starts_again(cooked: Workspace) -> None:
    cooked.run(3)
    before = cooked.snapshot()
    cooked.run(2)
    assert cooked.snapshot() != before
    cooked.run(3, "--fresh")
    assert cooked.snapshot() == before


def test_killed_at_any_moment_and_continued(cooked: Workspace, uninterrupted: dict[str, bytes]) -> None:
    rng = random.Random(5)
    for attempt in range(7):
        process = cooked.start("run", "--until", EPOCHS, "--checkpoint-every", 1, "--quiet")
        if attempt % 3 == 0:  # during start-up
            time.sleep(rng.uniform(0.1, 0.8))
        else:  # while it trains, between or inside checkpoints
            wait_for_checkpoint(cooked, process)
            time.sleep(rng.uniform(0, 0.1))
        process.kill()
        process.communicate()
    cooked.run("--until", EPOCHS)
    assert cooked.snapshot() == uninterrupted
    assert not [path for path in cooked.checkpoint.parent.iterdir() if "tmp" in path.name]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_polite_signal_leaves_a_checkpoint(
    number: signal.Signals, code: int, make_cooked: Callable[[str], Workspace]
) -> None:
    stopped, straight = make_cooked("stopped"), make_cooked("straight")
    process = stopped.start("run", 100_000, "--checkpoint-every", 5)
    wait_for_checkpoint(stopped, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "Traceback" not in err
    epoch = stopped.info(stopped.checkpoint)["metrics"]["epoch"]
    stopped.run("--until", epoch + 3)
    straight.run(epoch + 3)
    assert stopped.snapshot() == straight.snapshot()
