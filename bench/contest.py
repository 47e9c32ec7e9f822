"""Which measurements are made on this machine, in which order. Each is announced before it starts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import inf
from pathlib import Path

from bench import work
from bench.machine import Machine
from bench.modes import CPU_MODES, GPU_MODES, Mode
from bench.options import SIDES, WIDTHS, Options
from bench.problem import Problem, holds, photograph, save_problem
from bench.processes import Process, together
from bench.pytorch import runner as pytorch
from bench.results import Results
from bench.rows import CONVTRAIN, PYTORCH, Row, affordable_epochs, fastest
from bench.vulkan import trainer as convtrain


@dataclass(frozen=True)
class Preset:
    """What is measured unless options say otherwise."""

    problem: Problem
    epochs: int
    modes: tuple[str, ...]
    sides: tuple[int, ...]
    widths: tuple[int, ...]
    sweep_epochs: int
    element: int  # bytes of a feature in the bound


GPU = Preset(Problem(), 600, GPU_MODES, SIDES, WIDTHS, 300, 2)
CPU = Preset(Problem(height=128, width=128, nf=32), 200, CPU_MODES, (64, 128, 256), (16, 32, 64), 5, 4)
CORES_TO_COMPILE = 2  # that a compiler may keep busy
SWEEP_SECONDS = 2.0  # that a point of the sweep may take, in fewer epochs
QUICK_MODES = {"gpu": ("graph-bf16", "graph-fp16-toeplitz"), "cpu": ("eager-fp32",)}
FIRST_EPOCHS = 5  # of the run that builds pipelines


def preset_of(machine: Machine, options: Options) -> Preset:
    """The machine's preset with the options applied."""
    preset = GPU if machine.gpu else CPU
    if options.quick:
        modes = QUICK_MODES["gpu" if machine.gpu else "cpu"]
        preset = replace(preset, epochs=preset.epochs // 10, modes=modes)
    return replace(
        preset,
        epochs=options.epochs or preset.epochs,
        modes=preset.modes if options.modes is None else options.modes,
        sides=options.sides or preset.sides,
        widths=options.widths or preset.widths,
        sweep_epochs=options.sweep_epochs or preset.sweep_epochs,
    )


@dataclass
class Contest:
    """Runs the measurements and gathers ``results``; ``keep`` is called whenever there are more of them."""

    machine: Machine
    options: Options
    preset: Preset
    folder: Path
    say: Callable[[str], None]
    keep: Callable[[Results], object] = lambda results: None
    _waiting: Process | None = None  # has imported PyTorch for the next measurement
    _placed: set[Problem] = field(default_factory=set)
    _cooked: dict[Problem, convtrain.Cooked | str] = field(default_factory=dict)
    _first: dict[tuple[Problem, str], Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        preset = self.preset
        self.results = Results(self.machine, preset.problem, preset.epochs, preset.element)
        self.torch = self.options.torch and self.machine.torch is not None
        self._workers = (os.cpu_count() or 1) // CORES_TO_COMPILE  # processes that do not disturb each other

    def close(self) -> None:
        if self._waiting is not None:
            self._waiting.abandon()

    def prepare(self) -> None:
        """What is for processors to do, several at a time, before anything is measured: cook, compile, build pipelines.

        Whatever fails here is tried again, alone, when its turn comes.
        """
        points = dict.fromkeys([self.preset.problem, *(self._points() if self.options.sweep else ())])
        for point in points:
            self._place(point)
        jobs: list[Callable[[], object]] = []
        if self.options.convtrain:
            jobs += [partial(self._build, point) for point in points]
        if self.torch:
            jobs += [partial(self._compile, point, mode) for point, mode in self._to_compile()]
        if self._workers < 2 and not self.options.prepare:
            return  # nothing is gained
        workers = max(1, self._workers)
        self.say(f"cooking and compiling: {len(jobs)} jobs, {workers} at a time")
        together(lambda job: job(), jobs, workers)

    def _to_compile(self) -> Iterator[tuple[Problem, str]]:
        """Modes that time kernels to choose among them are left out, as they must not disturb each other."""
        wanted = [(self.preset.problem, mode) for mode in self.preset.modes]
        if self.options.sweep:
            wanted += [(point, mode) for point in self._points() for mode in self.options.sweep_modes or ()]
        for point, name in dict.fromkeys(wanted):
            mode = Mode.parse(name)
            if mode.compiled and not mode.autotune:
                yield point, name

    def _compile(self, point: Problem, mode: str) -> None:
        """Fill PyTorch's compile cache, once: it takes the better part of a minute."""
        done = self._place(point) / f"compiled-{mode}"
        if done.exists():
            return
        worker = pytorch.start(self.options.pytorch, CORES_TO_COMPILE)
        if self._pytorch(worker, point, mode, 1).error is None:
            done.touch()

    def _build(self, point: Problem) -> None:
        """Cook, and let the driver compile."""
        cooked = self._cook(point)
        if isinstance(cooked, convtrain.Cooked):
            main = point == self.preset.problem
            for plan in self._plans(cooked, None if main else self.options.sweep_plans):
                self._first[point, plan] = self._begin(cooked, plan)

    def compare(self) -> None:
        """The main comparison."""
        problem, epochs = self.preset.problem, self.preset.epochs
        for row in self._convtrain(problem, epochs, self.options.seconds):
            self._keep(self.results.rows, row)
        for mode in self.preset.modes if self.torch else ():
            self._announce(PYTORCH, mode, problem, epochs)
            self._keep(self.results.rows, self._pytorch(self._worker(), problem, mode, epochs, self.options.seconds))

    def _points(self) -> tuple[Problem, ...]:
        """The sizes of the sweep."""
        fixed = self.preset.problem
        points = [replace(fixed, height=side, width=side) for side in self.preset.sides]
        return (*dict.fromkeys([*points, *(replace(fixed, nf=nf) for nf in self.preset.widths)]),)

    def grow(self) -> None:
        """How cost grows with the image's side and with NF: every plan, and the fastest PyTorch mode so far."""
        epochs, spent, seconds = self.preset.sweep_epochs, 0.0, min(self.options.seconds or inf, SWEEP_SECONDS)
        best = fastest(row for row in self.results.rows if row.side == PYTORCH)
        modes = self.options.sweep_modes
        if modes is None:
            modes = (best.name,) if best else ()
        for point in self._points():
            for row in self._convtrain(point, epochs, seconds, self.options.sweep_plans):
                self._keep(self.results.sweep, row)
        for point, mode in product(self._points(), modes if self.torch else ()):
            if spent > self.options.sweep_budget:
                self.say(f"PyTorch is left out from here on: --sweep-budget {self.options.sweep_budget:.0f} is spent")
                break
            started = time.perf_counter()
            self._announce(PYTORCH, mode, point, epochs)
            self._keep(self.results.sweep, self._pytorch(self._worker(), point, mode, epochs, seconds))
            spent += time.perf_counter() - started

    def _place(self, point: Problem) -> Path:
        """A folder for each size, with the problem in it; what an earlier run left half written is written again."""
        folder = self.folder / f"{point.width}x{point.height}-nf{point.nf}"
        if point not in self._placed:
            if not holds(folder, point):
                save_problem(folder, point, photograph(point.height))
            self._placed.add(point)
        return folder

    def _cook(self, point: Problem) -> convtrain.Cooked | str:
        if point not in self._cooked:
            self.say(f"  cooking {_describe(point)}")
            self._cooked[point] = convtrain.cook(self._place(point), point, self.options.timeout)
        return self._cooked[point]

    def _plans(self, cooked: convtrain.Cooked, wanted: tuple[str, ...] | None = None) -> list[str]:
        """The wanted plans; those that exist for some models only are no failure where they are left out."""
        wanted = wanted or self.options.plans or (*cooked.traffic,)
        return [plan for plan in wanted if plan in cooked.traffic or plan not in cooked.left_out]

    def _begin(self, cooked: convtrain.Cooked, plan: str) -> Row:
        """A few epochs: the first run of an archive builds pipelines."""
        return convtrain.train(cooked, plan, FIRST_EPOCHS, self.options.timeout, self.options.device)

    def _convtrain(
        self, point: Problem, epochs: int, seconds: float | None, plans: tuple[str, ...] | None = None
    ) -> Iterator[Row]:
        """A row for each plan."""
        if not self.options.convtrain:
            return
        cooked = self._cook(point)
        if isinstance(cooked, str):
            yield Row(CONVTRAIN, "all", point.height, point.width, point.nf, error=cooked)
            return
        for plan in self._plans(cooked, plans):
            self._announce(CONVTRAIN, plan, point, epochs)
            row = self._first.pop((point, plan), None)
            if row is None or _affordable(row, epochs, seconds) < epochs:  # in company it was slower than it is alone
                row = self._begin(cooked, plan)
            if row.error is None:
                affordable = _affordable(row, epochs, seconds)
                row = convtrain.train(cooked, plan, affordable, self.options.timeout, self.options.device)
            self._add_shares(row, point, cooked.traffic.get(plan, 0))
            yield row

    def _worker(self) -> Process:
        """A process for the next measurement. While a GPU is busy with it, another gets ready on a spare core."""
        python = self.options.pytorch
        worker, self._waiting = self._waiting or pytorch.start(python), None
        if self.machine.gpu and self._workers > 1:
            self._waiting = pytorch.start(python)
        return worker

    def _pytorch(self, worker: Process, point: Problem, mode: str, epochs: int, seconds: float | None = None) -> Row:
        device, folder = "cuda" if self.machine.gpu else "cpu", self._place(point)
        row = pytorch.train(worker, folder, point, mode, epochs, seconds, device, self.options.timeout)
        row.device = self.machine.torch_device
        self._add_shares(row, point, 0)
        return row

    def _add_shares(self, row: Row, problem: Problem, traffic: int) -> None:
        if not row.ms_per_epoch:
            return
        seconds, ceilings = row.ms_per_epoch / 1e3, self.machine.ceilings
        if traffic and ceilings.get("copy_bytes_per_second"):
            row.bandwidth_share = traffic / seconds / ceilings["copy_bytes_per_second"]
        if ceilings.get("matrix_flops_per_second"):
            row.matrix_share = work.matrix_flops(problem) / seconds / ceilings["matrix_flops_per_second"]

    def _announce(self, side: str, name: str, problem: Problem, epochs: int) -> None:
        self.say(f"{side} {name}: {_describe(problem)}, {epochs} epochs")

    def _keep(self, rows: list[Row], row: Row) -> None:
        rows.append(row)
        self.say(f"  {row.error}" if row.error else f"  {row.ms_per_epoch:.2f} ms per epoch, {row.epochs} epochs")
        self.keep(self.results)


def _affordable(row: Row, epochs: int, seconds: float | None) -> int:
    """How many epochs the next run may have, judging by this one; 0 where it failed."""
    return affordable_epochs(epochs, row.ms_per_epoch / 1e3, seconds) if row.ms_per_epoch else 0


def _describe(problem: Problem) -> str:
    return f"{problem.width}x{problem.height}, NF {problem.nf}"
