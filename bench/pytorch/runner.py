"""Starts PyTorch measurements; needs no torch itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.problem import Problem
from bench.processes import Outcome, run
from bench.rows import PYTORCH, Row


def _worker(python: str, job: dict[str, Any], timeout: float, *, watch_memory: bool = False) -> Outcome:
    command = [python, "-m", "bench.pytorch.worker", json.dumps(job)]
    return run(command, timeout=timeout, watch_memory=watch_memory)


def probe(python: str, timeout: float) -> Outcome:
    """What PyTorch this Python has: see ``worker.probe``."""
    return _worker(python, {"probe": True}, timeout)


def train(
    python: str,
    folder: Path,
    problem: Problem,
    mode: str,
    epochs: int,
    seconds: float | None,
    device: str,
    timeout: float,
) -> Row:
    """Train the problem saved in ``folder`` from the start, in a mode by name, on device "cuda" or "cpu".

    Fewer epochs where they would take longer than ``seconds``.
    """
    row = Row(PYTORCH, mode, problem.height, problem.width, problem.nf)
    job = {"problem": str(folder), "mode": mode, "epochs": epochs, "seconds": seconds, "device": device}
    outcome = _worker(python, job, timeout, watch_memory=True)
    if outcome.error:
        row.error = outcome.error
        return row
    row.take({**outcome.data, "device_memory": outcome.device_memory})
    row.curve = [(int(epoch), float(value)) for epoch, value in row.curve]
    row.start_seconds = outcome.seconds - outcome.data["seconds"]
    return row
