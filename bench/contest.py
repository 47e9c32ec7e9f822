"""Which measurements are made on this machine, in which order. Each is announced before it starts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench import work
from bench.machine import Machine
from bench.modes import CPU_MODES, GPU_MODES, Mode
from bench.options import SIDES, WIDTHS, Options
from bench.problem import Problem, photograph, save_problem
from bench.pytorch import runner as pytorch
from bench.rows import CONVTRAIN, PYTORCH, Row, fastest
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


GPU = Preset(Problem(), 600, GPU_MODES, SIDES, WIDTHS, 50, 2)
CPU = Preset(Problem(height=128, width=128, nf=32), 200, CPU_MODES, (64, 128, 256), (16, 32, 64), 5, 4)
CORES_TO_COMPILE = 3  # that PyTorch's compiler keeps busy for one mode
QUICK_MODES = {"gpu": ("graph-bf16", "graph-fp16-toeplitz"), "cpu": ("eager-fp32",)}


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
    """Runs the measurements and gathers ``rows`` (the main comparison) and ``sweep``."""

    machine: Machine
    options: Options
    preset: Preset
    folder: Path
    say: Callable[[str], None]
    rows: list[Row] = field(default_factory=list)
    sweep: list[Row] = field(default_factory=list)

    @property
    def torch(self) -> bool:
        return self.options.torch and self.machine.torch is not None

    def compare(self) -> None:
        """The main comparison."""
        problem, epochs = self.preset.problem, self.preset.epochs
        save_problem(self.folder, problem, photograph(problem.height))
        for row in self._convtrain(problem, epochs):
            self._keep(self.rows, row)
        self._compile_ahead(problem)
        for mode in self.preset.modes if self.torch else ():
            self._announce(PYTORCH, mode, problem, epochs)
            self._keep(self.rows, self._pytorch(problem, mode, epochs))

    def _compile_ahead(self, problem: Problem) -> None:
        """Fill PyTorch's compile cache, several modes at once: each takes the better part of a minute.

        Modes that time kernels to choose among them are left out, as they must not disturb each other.
        """
        modes = [name for name in self.preset.modes if not (mode := Mode.parse(name)).autotune and mode.compiled]
        workers = (os.cpu_count() or 1) // CORES_TO_COMPILE
        if not self.torch or workers < 2 or len(modes) < 2:
            return
        self.say(f"compiling {len(modes)} PyTorch modes")
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda mode: self._pytorch(problem, mode, 1), modes))

    def grow(self) -> None:
        """How cost grows with the image's side and with NF: every plan, and the fastest PyTorch mode so far."""
        fixed, epochs = self.preset.problem, self.preset.sweep_epochs
        points = [replace(fixed, height=side, width=side) for side in self.preset.sides]
        points += [replace(fixed, nf=nf) for nf in self.preset.widths]
        best = fastest(row for row in self.rows if row.side == PYTORCH)
        mode, spent = best.name if best else None, 0.0
        for point in dict.fromkeys(points):
            save_problem(self.folder, point, photograph(point.height))
            for row in self._convtrain(point, epochs):
                self._keep(self.sweep, row)
            if mode is None or not self.torch:
                continue
            if spent > self.options.sweep_budget:
                self.say(f"  PyTorch is left out here: --sweep-budget {self.options.sweep_budget:.0f} is spent")
                continue
            started = time.perf_counter()
            self._announce(PYTORCH, mode, point, epochs)
            self._keep(self.sweep, self._pytorch(point, mode, epochs))
            spent += time.perf_counter() - started

    def _convtrain(self, problem: Problem, epochs: int) -> Iterator[Row]:
        """A row for each plan. The first run of an archive builds pipelines, so one epoch goes before."""
        if not self.options.convtrain:
            return
        timeout, device = self.options.timeout, self.options.device
        self.say(f"  cooking {_describe(problem)}")
        cooked = convtrain.cook(self.folder, problem, timeout)
        if isinstance(cooked, str):
            yield Row(CONVTRAIN, "all", problem.height, problem.width, problem.nf, error=cooked)
            return
        for plan in self.options.plans or cooked.traffic:
            self._announce(CONVTRAIN, plan, problem, epochs)
            first = convtrain.train(cooked, plan, 1, timeout, device)
            row = first if first.error else convtrain.train(cooked, plan, epochs, timeout, device)
            self._add_shares(row, problem, cooked.traffic.get(plan, 0))
            yield row

    def _pytorch(self, problem: Problem, mode: str, epochs: int) -> Row:
        device = "cuda" if self.machine.gpu else "cpu"
        row = pytorch.train(self.options.pytorch, self.folder, problem, mode, epochs, device, self.options.timeout)
        row.device = self.machine.torch_device
        self._add_shares(row, problem, 0)
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
        self.say(f"  {row.error}" if row.error else f"  {row.ms_per_epoch:.2f} ms per epoch")

    def bound(self) -> dict[str, Any]:
        """The least time of an epoch, from counted work and measured ceilings; {} where one is unknown."""
        ceilings, problem = self.machine.ceilings, self.preset.problem
        bandwidth, rate = ceilings.get("copy_bytes_per_second"), ceilings.get("matrix_flops_per_second")
        if not bandwidth or not rate:
            return {}
        traffic, products = work.least_bytes(problem, self.preset.element), work.matrix_flops(problem)
        return {
            "bytes": traffic,
            "matrix_flops": products,
            "depthwise_flops": work.depthwise_flops(problem),
            "ms": 1e3 * (traffic / bandwidth + products / rate),
        }


def _describe(problem: Problem) -> str:
    return f"{problem.width}x{problem.height}, NF {problem.nf}"
