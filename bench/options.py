"""The command line of ``python -m bench``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.modes import Mode

RESULTS = Path(__file__).parent / "results"
SIDES, WIDTHS = (128, 256, 512, 1024, 2048), (32, 64, 128, 256)
LONGEST = 1e6  # seconds; the system's waits end at about twice as many


@dataclass(frozen=True)
class Options:
    """What to measure; None where the machine decides (see ``contest.Preset``)."""

    epochs: int | None
    modes: tuple[str, ...] | None
    plans: tuple[str, ...] | None
    sides: tuple[int, ...] | None
    widths: tuple[int, ...] | None
    sweep_epochs: int | None
    sweep_budget: float  # seconds that PyTorch's part of the sweep may take
    sweep_plans: tuple[str, ...] | None
    sweep_modes: tuple[str, ...] | None
    seconds: float | None  # that one training may take; slow plans and modes get fewer epochs
    timeout: float  # seconds for one measurement
    device: str | None
    pytorch: str  # the Python to import torch in
    torch: bool
    convtrain: bool
    sweep: bool
    quick: bool
    work: Path | None  # where archives and compiled kernels are kept for the next run
    prepare: bool  # do nothing but fill it
    plot: Path | None  # results to draw again, nothing to measure
    output: Path


def names(text: str) -> tuple[str, ...]:
    """The parts of a list with commas."""
    return tuple(filter(None, (part.strip() for part in text.split(","))))


def _modes(text: str) -> tuple[str, ...]:
    try:
        return tuple(Mode.parse(name).name for name in names(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in names(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of whole numbers") from None
    if any(value < 1 for value in found):
        raise argparse.ArgumentTypeError("every number must be at least 1")
    return found


def positive(text: str) -> int:
    """A whole number of at least 1."""
    values = _numbers(text)
    if len(values) != 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not one number")
    return values[0]


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number") from None
    if not 0 < value <= LONGEST:
        raise argparse.ArgumentTypeError(f"must be more than 0 and at most {LONGEST:.0f} seconds, not {text}")
    return value


def parse(arguments: Sequence[str] | None = None) -> Options:
    """The options, from ``sys.argv`` unless given. Exits with code 2 on bad usage, as argparse does."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Train the same model with convtrain and with PyTorch on this machine, and compare.",
        epilog="With a GPU: the seed preset (512x512, NF 128), 600 epochs. Without: preset cpu, 200 epochs.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="few epochs, the most telling modes, no sweep: about a minute")
    add("--epochs", type=positive, metavar="N", help="epochs of the main comparison")
    add("--modes", type=_modes, metavar="A,B", help="PyTorch modes, such as eager-bf16,graph-fp16-toeplitz")
    add("--plans", type=names, metavar="A,B", help="plans of the archive; all unless given")
    add("--sizes", type=_numbers, metavar="A,B", help="image sides of the sweep")
    add("--features", type=_numbers, metavar="A,B", help="NF of the sweep")
    add("--sweep-epochs", type=positive, metavar="N", help="epochs of each point of the sweep, at most")
    add("--sweep-budget", type=float, default=600.0, metavar="S", help="seconds for PyTorch's part of the sweep (600)")
    add("--sweep-plans", type=names, metavar="A,B", help="plans of the sweep; those of --plans unless given")
    add(
        "--sweep-modes",
        type=_modes,
        metavar="A,B",
        help="PyTorch modes of the sweep; unless given, the fastest",
    )
    add("--seconds", type=_seconds, metavar="S", help="plans and modes that would train longer are only timed")
    add("--timeout", type=_seconds, default=300.0, metavar="S", help="seconds for one measurement (300)")
    add("--device", help="Vulkan device of convtrain, by index or name")
    add("--pytorch", default=sys.executable, metavar="PYTHON", help="the Python that has torch; this one unless given")
    add("--no-torch", action="store_true", help="convtrain alone")
    add("--no-convtrain", action="store_true", help="PyTorch alone")
    add("--no-sweep", action="store_true", help="the main comparison alone")
    add("--work", type=Path, metavar="DIR", help="keep archives and compiled kernels here, for the next run")
    add("--prepare", action="store_true", help="only cook and compile, into --work")
    add("--plot", type=Path, metavar="FILE", help="measure nothing: tables and plots from an earlier run's bench.json")
    add("--output", type=Path, metavar="DIR", help="where results go (bench/results, or beside --plot's file)")
    given = parser.parse_args(arguments)
    if given.prepare and given.work is None:
        parser.error("--prepare needs --work DIR")
    return Options(
        epochs=given.epochs,
        modes=given.modes,
        plans=given.plans,
        sides=given.sizes,
        widths=given.features,
        sweep_epochs=given.sweep_epochs,
        sweep_budget=given.sweep_budget,
        sweep_plans=given.sweep_plans,
        sweep_modes=given.sweep_modes,
        seconds=given.seconds,
        timeout=given.timeout,
        device=given.device,
        pytorch=given.pytorch,
        torch=not given.no_torch,
        convtrain=not given.no_convtrain,
        sweep=not (given.no_sweep or given.quick),
        quick=given.quick,
        work=given.work and given.work.resolve(),
        prepare=given.prepare,
        plot=given.plot,
        output=given.output or (given.plot.parent if given.plot else RESULTS),
    )
