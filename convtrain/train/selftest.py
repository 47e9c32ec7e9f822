"""Does a plan compute on this device what the reference's scalar kernels compute? Asked once, before its first use.

Both plans run one epoch from the archive's seeds. A driver that miscompiles a kernel, or a matrix unit that rounds as
nobody expected, shows in the output or in the gradient of some weight slot. The verdict is kept beside the pipeline
cache, for the same device, driver and SPIR-V.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from convtrain.errors import ConvtrainError
from convtrain.files.archive import TrainingArchive
from convtrain.files.atomic import ensure_folder, write_bytes
from convtrain.files.container import Data
from convtrain.files.regular import read_regular
from convtrain.gpu.live.engine import Engine
from convtrain.gpu.plan import ExecutionPlan, plan_execution
from convtrain.train.stepper import set_control, training_passes

REFERENCE = "reference"
TRUSTED_KINDS = ("cpu",)
"""Types of device whose fp32 kernels are not judged."""
OUTPUT_TOLERANCE = 5e-3
GRADIENT_TOLERANCE = 2e-2
"""Relative errors ‖Δ‖/‖reference‖ that fp16 storage explains; of the gradient by weight slot."""


def verdict(execution: ExecutionPlan, archive: TrainingArchive, cache_dir: Path) -> str | None:
    """None where the plan agrees with the reference on this device, else a sentence about what does not.

    Plans that cannot be compared (the archive has no reference, or the device cannot hold it) are not judged, nor is
    the reference itself on fp32 storage: those kernels are the measure. Nor are fp32 kernels on a CPU: they are made of
    what the reference is made of, and half a minute of compiling is too long.
    """
    itself = execution.plan.name == REFERENCE and execution.storage == "f32"
    if itself or REFERENCE not in archive.plans or execution.switches.no_self_test:
        return None
    if execution.snapshot.kind in TRUSTED_KINDS and execution.storage == "f32":
        return None
    path, key = cache_dir / "self-test.json", _key(execution)
    known = _read(path)
    if key not in known:
        try:
            # Scalar kernels are the oracle: the reference's own variants are not to be trusted either.
            scalar = replace(execution.switches, no_coopmat=True, no_fp16=True, no_subgroup_size=True)
            reference = plan_execution(execution.snapshot, archive.plans[REFERENCE], scalar)
            expected = _one_epoch(reference, archive, cache_dir)
        except ConvtrainError:  # too large for the device, or for what is free of its memory
            return None
        known[key] = _difference(archive, _one_epoch(execution, archive, cache_dir), expected)
        ensure_folder(cache_dir)
        write_bytes(path, json.dumps(known, indent=1).encode())
    return known[key]


def _key(execution: ExecutionPlan) -> str:
    """Names the device, its driver and everything that it executes."""
    device = execution.snapshot
    facts = [device.name, device.driver_name, device.driver_info, str(device.driver_version), execution.storage]
    facts += [choice.variant.spirv for choice in execution.choices]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()


def _read(path: Path) -> dict[str, str | None]:
    """Earlier verdicts; a file that is missing or damaged only costs another test."""
    try:
        found = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _difference(archive: TrainingArchive, found: tuple[Data, Data], expected: tuple[Data, Data]) -> str | None:
    """A sentence about outputs and gradients that differ by more than fp16 explains, or None."""
    pictures = (np.frombuffer(output, "<f4") for output, _ in (found, expected))
    errors = {"output": (_error(*pictures), OUTPUT_TOLERANCE)}
    mine, theirs = archive.weights.split(found[1]), archive.weights.split(expected[1])
    for name in theirs:
        errors[f"gradient of {name}"] = (_error(mine[name], theirs[name]), GRADIENT_TOLERANCE)
    wrong = [f"{name} by {error:.1e}" for name, (error, tolerance) in errors.items() if not error <= tolerance]
    if not wrong:
        return None
    return f"self-test failed on this driver: after one epoch it differs from the reference in {', '.join(wrong[:3])}."


def _one_epoch(execution: ExecutionPlan, archive: TrainingArchive, cache_dir: Path) -> tuple[Data, Data]:
    """Output and gradient of the first epoch."""
    plan = execution.plan
    with Engine(execution, archive.blob, cache_dir=cache_dir) as engine:
        for name in ("beta1_correction", "beta2_correction"):  # lr stays 0: only the gradient counts
            set_control(engine, plan, name, 1.0)
        engine.run(training_passes(plan))
        return engine.read(plan.roles.output), engine.read(plan.roles.gradient)


def _error(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """‖found − expected‖ / ‖expected‖ in float64; NaN where a value is not finite."""
    difference = np.linalg.norm(found.astype(np.float64) - expected)
    scale = np.linalg.norm(expected.astype(np.float64))
    return float(difference / scale) if scale else float(difference)
