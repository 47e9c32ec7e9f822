"""The tables, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.quality import THRESHOLDS, epochs_to
from bench.rows import PYTORCH, Row, fastest

NONE = "–"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, padded so that it reads well as plain text; all but the first two columns right-aligned."""
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = [text.ljust(width) for text, width in zip(row[:2], widths[:2], strict=True)]
        padded += [text.rjust(width) for text, width in zip(row[2:], widths[2:], strict=True)]
        return f"| {' | '.join(padded)} |"

    rule = "|".join("-" * (width + 2) if n < 2 else "-" * (width + 1) + ":" for n, width in enumerate(widths))
    return "\n".join([line(cells[0]), f"|{rule}|", *map(line, cells[1:])])


def number(value: float | None, digits: int = 2, unit: str = "") -> str:
    return NONE if value is None else f"{value:,.{digits}f}{unit}"


def gib(value: int | None) -> str:
    return number(None if value is None else value / 2**30, 2)


def percent(value: float | None) -> str:
    return number(None if value is None else 100 * value, 0, " %")


def times_faster(row: Row, other: Row | None) -> str:
    """How many times the speed of ``other`` this row has."""
    if other is None or not row.ms_per_epoch or not other.ms_per_epoch:
        return NONE
    return f"{other.ms_per_epoch / row.ms_per_epoch:.2f}×"


def seconds_to(row: Row, threshold: float) -> str:
    """Seconds of training until the picture first has this PSNR."""
    epochs = epochs_to(row.curve, threshold)
    return NONE if epochs is None or row.ms_per_epoch is None else number(epochs * row.ms_per_epoch / 1e3, 2)


def comparison(rows: Sequence[Row], epochs: int) -> str:
    """The main table. A row of fewer ``epochs`` has no final quality to compare."""
    best = fastest(row for row in rows if row.side == PYTORCH)
    best_own = fastest(row for row in rows if row.own_convolution)
    header = [
        "",
        "plan or mode",
        "epochs",
        "ms/epoch",
        "× best PyTorch",
        "× best with conv2d",
        *(f"{threshold:.0f} dB, s" for threshold in THRESHOLDS),
        "8-bit PSNR, dB",
        "memory, GiB",
        "driver's, GiB",
        "bandwidth",
        "matrix",
        "start, s",
    ]
    body = [
        [
            row.side,
            row.name,
            str(row.epochs),
            number(row.ms_per_epoch),
            times_faster(row, best),
            times_faster(row, best_own),
            *(seconds_to(row, threshold) for threshold in THRESHOLDS),
            number(row.psnr_u8 if row.epochs >= epochs else None),
            gib(row.memory),
            gib(row.device_memory),
            percent(row.bandwidth_share),
            percent(row.matrix_share),
            number(row.start_seconds, 1),
        ]
        for row in rows
        if row.error is None
    ]
    return markdown(header, body)


def failures(rows: Iterable[Row]) -> str:
    """A line for each measurement that failed."""
    failed = [row for row in rows if row.error]
    lines = [f"- {row.side} {row.name}, {row.width}×{row.height}, NF {row.nf}: {row.error}" for row in failed]
    return "\n".join(["Not measured:", "", *lines]) if lines else ""


def growth(rows: Sequence[Row], contenders: Sequence[tuple[str, str]]) -> str:
    """ms per epoch by size; a column for each contender (side, name)."""
    points = sorted({(row.width, row.height, row.nf) for row in rows})
    found = {(row.width, row.height, row.nf, row.side, row.name): row for row in rows}

    def cell(point: tuple[int, int, int], contender: tuple[str, str]) -> str:
        row = found.get((*point, *contender))
        return NONE if row is None else ("failed" if row.error else number(row.ms_per_epoch, 3))

    header = ["image", "NF", *(f"{side} {name}, ms/epoch" for side, name in contenders)]
    body = [
        [f"{point[0]}×{point[1]}", str(point[2]), *(cell(point, contender) for contender in contenders)]
        for point in points
    ]
    return markdown(header, body)


def contenders(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """Who was measured at least once, in order of first appearance."""
    return list(dict.fromkeys((row.side, row.name) for row in rows if row.error is None))
