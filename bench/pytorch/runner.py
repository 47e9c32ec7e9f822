"""Starts PyTorch measurements; needs no torch itself."""

from __future__ import annotations

import json
from pathlib import Path

from bench.problem import Problem
from bench.processes import Outcome, Process, run
from bench.rows import PYTORCH, Row


def _command(python: str) -> list[str]:
    return [python, "-m", "bench.pytorch.worker"]


def probe(python: str, timeout: float) -> Outcome:
    """What PyTorch this Python has: see ``worker.probe``."""
    return run(_command(python), json.dumps({"probe": True}), timeout=timeout)


def start(python: str, cores: int | None = None) -> Process:
    """A process that imports PyTorch and waits for a job. ``cores``: how many its compiler may keep busy."""
    variables = {} if cores is None else {"TORCHINDUCTOR_COMPILE_THREADS": str(cores)}
    return Process(_command(python), variables=variables)


def train(
    worker: Process,
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
    outcome = worker.finish(json.dumps(job), timeout=timeout, watch_memory=True)
    if outcome.error:
        row.error = outcome.error
        return row
    row.take({**outcome.data, "device_memory": outcome.device_memory})
    row.curve = [(int(epoch), float(value)) for epoch, value in row.curve]
    return row
