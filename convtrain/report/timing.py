"""The per-pass table of ``CONV_TIME=1``: GPU times from timestamps, against declared bytes and operations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from convtrain.gpu.plan import ExecutionPlan
from convtrain.gpu.timings import PassTiming

GROUPS = ("forward", "loss", "backward", "update", "average")
"""Order of the group totals; a recipe's own groups come after these."""


@dataclass(frozen=True)
class Row:
    """One pass: its mean GPU time per epoch, and what it declares to move and compute in that time."""

    index: int
    name: str
    group: str
    variant: str
    workgroups: tuple[int, int, int]
    microseconds: float
    share: float  # of all passes' time, 0 to 1
    gigabytes_per_second: float
    gigaflops: float  # per second
    covers: tuple[str, ...]  # reference passes


class TimingLog:
    """Gathers the timings of epochs and renders their means."""

    def __init__(self, execution: ExecutionPlan) -> None:
        self._execution = execution
        self._epochs = 0
        self._nanoseconds: dict[int, float] = {}

    def add(self, timings: Iterable[PassTiming]) -> None:
        """Add one epoch, as ``Engine.measure`` gives it."""
        self._epochs += 1
        for item in timings:
            self._nanoseconds[item.index] = self._nanoseconds.get(item.index, 0.0) + item.nanoseconds

    def rows(self) -> list[Row]:
        """One row for each pass that ran; empty where nothing was measured."""
        total = sum(self._nanoseconds.values())
        found = []
        for index in sorted(self._nanoseconds):
            item, variant = self._execution.plan.passes[index], self._execution.choices[index].variant
            mean = self._nanoseconds[index] / self._epochs
            found.append(
                Row(
                    index,
                    item.name,
                    item.group,
                    variant.name,
                    variant.groups,
                    mean / 1e3,
                    self._nanoseconds[index] / total if total else 0.0,
                    item.nbytes / mean if mean else 0.0,
                    item.flops / mean if mean else 0.0,
                    item.covers,
                )
            )
        return found

    def render(self, seconds: float) -> str:
        """The table as plain text. ``seconds`` is the wall time of all epochs that were added."""
        device, rows = self._execution.snapshot, self.rows()
        if self._execution.switches.no_timestamps:
            return "No times by pass: CONV_NO_TIMESTAMPS is set."
        if not device.timestamp_bits:
            return f"No times by pass: {device.title} has no timestamps on its compute queue."
        if not rows:
            return "No times by pass: no epoch ran."
        span = f"mean of {self._epochs} epoch{'s' if self._epochs > 1 else ''}"
        lines = [f"GPU time by pass, {span} on {device.name}, plan {self._execution.plan.name}"]
        lines += _table(rows)
        lines += ["", *_groups(rows)]
        gpu, wall = sum(row.microseconds for row in rows) / 1e3, 1e3 * seconds / self._epochs
        lines.append(
            f"all passes {gpu:.3f} ms, wall time {wall:.3f} ms per epoch "
            f"({100 * (wall - gpu) / wall if wall else 0:.1f} % of it outside the passes)"
        )
        return "\n".join(lines)


def _table(rows: list[Row]) -> list[str]:
    fused = any(row.covers not in ((), (row.name,)) for row in rows)
    cells = [["#", "pass", "variant", "workgroups", "µs", "share", "GB/s", "GFLOP/s", *(["covers"] if fused else [])]]
    cells += [
        [
            str(row.index),
            row.name,
            row.variant,
            "×".join(map(str, row.workgroups)),
            f"{row.microseconds:,.1f}",
            f"{100 * row.share:.1f} %",
            f"{row.gigabytes_per_second:,.1f}",
            f"{row.gigaflops:,.1f}",
            *([_shorten(row.covers)] if fused else []),
        ]
        for row in rows
    ]
    return _align(cells, left={1, 2, 8})


def _shorten(names: tuple[str, ...]) -> str:
    """``a, b ×4`` for names that may repeat, in order of first appearance."""
    counts = {name: names.count(name) for name in names}
    return ", ".join(name if count == 1 else f"{name} ×{count}" for name, count in counts.items())


def _groups(rows: list[Row]) -> list[str]:
    names = list(dict.fromkeys(row.group for row in rows))
    order = sorted(names, key=lambda name: (GROUPS.index(name) if name in GROUPS else len(GROUPS), names.index(name)))
    cells = [["group", "passes", "ms", "share"]]
    for name in order:
        members = [row for row in rows if row.group == name]
        spent, share = sum(row.microseconds for row in members) / 1e3, sum(row.share for row in members)
        cells.append([name, str(len(members)), f"{spent:,.3f}", f"{100 * share:.1f} %"])
    return _align(cells, left={0})


def _align(cells: list[list[str]], left: set[int]) -> list[str]:
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]

    def line(row: list[str]) -> str:
        parts = (
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(parts).rstrip()

    return [line(row) for row in cells]
