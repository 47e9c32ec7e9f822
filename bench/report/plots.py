"""The plots, as PNG files. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.problem import Problem
from bench.report.tables import contenders
from bench.rows import CONVTRAIN, Row

COLOURS = {CONVTRAIN: ("#c1440e", "#e8862e", "#f2b872"), "PyTorch": ("#1f4e79", "#3f7cac", "#7fb0d3", "#8c8c8c")}
SIZE, DPI = (8, 4.5), 130


def _axes() -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=SIZE, layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path, dpi=DPI)
    pyplot.close(figure)
    return path


def bars(rows: Sequence[Row], path: Path) -> Path:
    """ms per epoch, slowest on top; linear, as bars should be."""
    timed = sorted((row for row in rows if row.ms_per_epoch), key=lambda row: -(row.ms_per_epoch or 0))
    figure, axes = _axes()
    values = [row.ms_per_epoch or 0.0 for row in timed]
    drawn = axes.barh(range(len(timed)), values, color=[COLOURS[row.side][0] for row in timed])
    axes.bar_label(drawn, [f" {value:,.{1 if value >= 100 else 2}f} ms" for value in values], fontsize=9)
    axes.set_yticks(range(len(timed)), [f"{row.side} {row.name}" for row in timed], fontsize=9)
    axes.set_xlim(right=1.12 * max(values))
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds per epoch")
    row = timed[0]
    axes.set_title(f"Time per epoch, {row.width}×{row.height}, NF {row.nf}")
    return _save(figure, path)


def curves(rows: Sequence[Row], path: Path) -> Path:
    """PSNR against seconds of training."""
    figure, axes = _axes()
    used = dict.fromkeys(COLOURS, 0)
    for row in rows:
        if row.ms_per_epoch and row.curve:
            palette = COLOURS[row.side]
            colour, used[row.side] = palette[used[row.side] % len(palette)], used[row.side] + 1
            style = "-" if used[row.side] <= len(palette) else "--"
            seconds = [epoch * row.ms_per_epoch / 1e3 for epoch, _ in row.curve]
            label = f"{row.side} {row.name}"
            axes.plot(seconds, [value for _, value in row.curve], style, color=colour, label=label, linewidth=1.4)
    axes.set_xscale("log")
    axes.set_xlabel("seconds of training (logarithmic)")
    axes.set_ylabel("PSNR, dB")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left")
    axes.set_title("Quality against time")
    return _save(figure, path)


def growth(rows: Sequence[Row], fixed: Problem, by: str, path: Path) -> Path:
    """ms per epoch of rows that are on the axis ``by``."""
    figure, axes = _axes()
    used = dict.fromkeys(COLOURS, 0)
    for side, name in contenders(rows):
        points = sorted((getattr(row, by), row.ms_per_epoch) for row in rows if (row.side, row.name) == (side, name))
        colour, used[side] = COLOURS[side][used[side] % len(COLOURS[side])], used[side] + 1
        axes.plot(*zip(*points, strict=True), "o-", color=colour, label=f"{side} {name}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_major_formatter("{x:g}")
    held = f"NF {fixed.nf}" if by == "height" else f"{fixed.width}×{fixed.height}"
    axes.set_xlabel("side of the image, pixels" if by == "height" else "features (NF)")
    axes.set_ylabel("milliseconds per epoch")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    axes.set_title(f"How cost grows, {held}")
    return _save(figure, path)


def on_axis(row: Row, fixed: Problem, by: str) -> bool:
    """True where nothing but the image's side (``by`` "height") or nothing but NF ("nf") differs."""
    return row.nf == fixed.nf if by == "height" else (row.height, row.width) == (fixed.height, fixed.width)
