"""Everything that a run measured: what the tables and plots are made of, as JSON and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import work
from bench.checked import check
from bench.machine import Machine
from bench.problem import Problem
from bench.rows import CONVTRAIN, PYTORCH, Row
from convtrain.files.regular import read_regular

SIZES = {"height", "width", "nf", "layers"}  # of the problem; an older run may lack other constants


@dataclass
class Results:
    """``rows`` is the main comparison, of ``problem`` over ``epochs`` epochs; ``sweep`` how cost grows."""

    machine: Machine
    problem: Problem
    epochs: int
    element: int  # bytes of a feature in the bound
    rows: list[Row] = field(default_factory=list)
    sweep: list[Row] = field(default_factory=list)

    @property
    def measured(self) -> bool:
        """Whether any measurement succeeded."""
        return any(row.error is None for row in (*self.rows, *self.sweep))

    @property
    def bound(self) -> dict[str, Any]:
        """The least time of an epoch, from counted work and measured ceilings; {} where one is unknown."""
        ceilings = self.machine.ceilings
        bandwidth, rate = ceilings.get("copy_bytes_per_second"), ceilings.get("matrix_flops_per_second")
        if not bandwidth or not rate:
            return {}
        traffic, products = work.least_bytes(self.problem, self.element), work.matrix_flops(self.problem)
        return {
            "bytes": traffic,
            "matrix_flops": products,
            "depthwise_flops": work.depthwise_flops(self.problem),
            "ms": 1e3 * (traffic / bandwidth + products / rate),
        }

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "bound": self.bound}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Results:
        """What ``to_json`` gave. Raises ValueError, KeyError or TypeError for anything else."""
        rows, sweep = ([Row.from_json(row) for row in data[name]] for name in ("rows", "sweep"))
        machine = Machine(**{**data["machine"], "notes": tuple(data["machine"]["notes"])})
        if missing := SIZES - {*data["problem"]}:
            raise KeyError(*sorted(missing))
        problem = Problem.of(data["problem"])
        results = cls(machine, problem, data["epochs"], data["element"], rows, sweep)
        for made in (results, machine, problem, *rows, *sweep):
            check(made)
        for row in (*rows, *sweep):
            if row.side not in (CONVTRAIN, PYTORCH) or min(row.height, row.width, row.nf) < 1:
                raise ValueError("a row is of no known side or size")
            if row.ms_per_epoch is not None and row.ms_per_epoch <= 0:
                raise ValueError("a row takes no time")
        return results


def save(results: Results, path: Path) -> Path:
    """Write the JSON; a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_text(json.dumps(results.to_json(), indent=1) + "\n")
        return temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def load(path: Path) -> Results:
    """Read what ``save`` wrote. Raises OSError, ValueError, KeyError or TypeError."""
    return Results.from_json(json.loads(read_regular(path)))
