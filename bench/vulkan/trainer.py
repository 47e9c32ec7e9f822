"""Cook and run through the command line, as a person would."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.problem import PICTURE_NAME, Problem
from bench.processes import Outcome, run
from bench.quality import decibels
from bench.rows import CONVTRAIN, Row

SETTINGS = ("nf", "layers", "ks", "kn", "halo")
SCALAR = {"CONV_NO_COOPMAT": "1", "CONV_NO_FP16": "1", "CONV_NO_SUBGROUP_SIZE": "1"}
"""The switches that leave the scalar fp32 kernels."""


def switches_for(plan: str, plans: Collection[str]) -> dict[str, str]:
    """What makes ``--plan`` mean this very plan: a name stands for its edition on matrix units too, so those go."""
    return {"CONV_NO_COOPMAT": "1"} if any(other.startswith(f"{plan}-") for other in plans) else {}


@dataclass(frozen=True)
class Cooked:
    """An archive ready to run.

    By plan: ``traffic``, the bytes an epoch's passes declare to move, and ``memory``, the bytes of its buffers.
    ``left_out`` names the plans that are for other models.
    """

    folder: Path
    problem: Problem
    traffic: dict[str, int]
    memory: dict[str, int]
    left_out: frozenset[str]


def _convtrain(
    *arguments: str,
    cwd: Path,
    timeout: float,
    parse: bool = True,
    watch_memory: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Outcome:
    command = [sys.executable, "-m", "convtrain", *arguments]
    return run(command, cwd=cwd, timeout=timeout, parse=parse, watch_memory=watch_memory, variables=variables)


def devices(timeout: float) -> Outcome:
    """What `convtrain devices --json` lists."""
    return _convtrain("devices", "--json", cwd=Path.cwd(), timeout=timeout)


def cook(folder: Path, problem: Problem, timeout: float) -> Cooked | str:
    """Cook the problem saved in ``folder`` and read back its plans; a sentence where that fails.

    Cooking again in the same folder compiles only the shaders that changed.
    """
    settings = [f"--set={name}={getattr(problem, name)}" for name in SETTINGS]
    options = ["--preset=seed", f"--seed={problem.seed}", *settings]
    made = _convtrain("cook", PICTURE_NAME, *options, cwd=folder, timeout=timeout, parse=False)
    if made.error:
        return f"cook failed: {made.error}"
    found = _convtrain("info", "res_train/train.res", "--json", cwd=folder, timeout=timeout)
    if found.error:
        return f"info failed: {found.error}"
    traffic = {
        name: sum(item.get("bytes", 0) for item in passes if not item.get("skip"))
        for name, passes in found.data["plans"].items()
    }
    memory = {name: sum(item["bytes"] for item in buffers) for name, buffers in found.data["buffers"].items()}
    return Cooked(folder, Problem.of(found.data["config"]), traffic, memory, frozenset(found.data["left_out"]))


def train(cooked: Cooked, plan: str, epochs: int, timeout: float, device: str | None) -> Row:
    """Train a plan from the start."""
    problem = cooked.problem
    row = Row(CONVTRAIN, plan, problem.height, problem.width, problem.nf)
    options = ["--plan", plan, "--fresh", "--checkpoint-every=0", "--json"]
    options += ["--device", device] if device is not None else []
    outcome = _convtrain(
        "run",
        str(epochs),
        *options,
        cwd=cooked.folder,
        timeout=timeout,
        watch_memory=True,
        variables=switches_for(plan, cooked.traffic),
    )
    if outcome.error:
        row.error = outcome.error
        return row
    found: dict[str, Any] = outcome.data
    row.take({name: found.get(name) for name in ("epochs", "ms_per_epoch", "seconds", "device")})
    row.take({name: found["metrics"].get(name) for name in ("psnr", "psnr_u8")})
    row.take({"memory": found.get("memory", cooked.memory.get(plan)), "device_memory": outcome.device_memory})
    row.start_seconds = outcome.seconds - found["seconds"]
    row.curve = curve(found)
    row.skipped = found.get("skipped")
    return row


def curve(found: dict[str, Any]) -> list[tuple[int, float]]:
    """PSNR of every epoch that the host looked at (all of them, unless the device decides the schedule)."""
    known = ((epoch, decibels(error)) for epoch, error in found["history"] if error is not None)
    return [(epoch, value) for epoch, value in known if value is not None]
