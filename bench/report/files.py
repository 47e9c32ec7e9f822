"""Writes the results of a run: ``bench.md``, ``bench.json`` and the plots."""

from __future__ import annotations

from pathlib import Path

from bench.report import plots
from bench.report.page import page
from bench.results import Results, save

PAGE_NAME, RESULTS_NAME = "bench.md", "bench.json"
BARS_NAME, CURVES_NAME, GROWTH_NAMES = "epoch.png", "quality.png", {"height": "side.png", "nf": "features.png"}
PLOT_NAMES = (BARS_NAME, CURVES_NAME, *GROWTH_NAMES.values())


def keep(results: Results, folder: Path) -> Path:
    """Write the JSON of a run that goes on; tables and plots of the run before go, as they are not of these results."""
    written = save(results, folder / RESULTS_NAME)
    for name in (PAGE_NAME, *PLOT_NAMES):
        (folder / name).unlink(missing_ok=True)
    return written


def write(results: Results, folder: Path) -> str:
    """Write everything into ``folder``, created if need be; gives the text to print."""
    kept = keep(results, folder)
    return draw(results, folder, kept) + f", {kept}"


def draw(results: Results, folder: Path, source: Path) -> str:
    """Write tables and plots of the results kept in ``source``, but no results; gives the text to print."""
    text = page(results)
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / PAGE_NAME]
    written[0].write_text(text)
    try:
        made = _plots(results, folder)
    except ImportError:
        text += (
            "\nNo plots, as matplotlib is not installed here: pip install 'convtrain[bench]', then draw them with\n"
            f"python -m bench --plot {source}\n"
        )
    else:
        written += made
        for name in PLOT_NAMES:
            if folder / name not in made:
                (folder / name).unlink(missing_ok=True)
    return f"{text}\nwrote {', '.join(map(str, written))}"


def _plots(results: Results, folder: Path) -> list[Path]:
    """Those for which something was measured. Raises ImportError without matplotlib."""
    timed = [row for row in results.rows if row.ms_per_epoch]
    made = [plots.bars(timed, folder / BARS_NAME), plots.curves(timed, folder / CURVES_NAME)] if timed else []
    for by, name in GROWTH_NAMES.items():
        grown = [row for row in results.sweep if row.ms_per_epoch and plots.on_axis(row, results.problem, by)]
        if len({getattr(row, by) for row in grown}) > 1:
            made.append(plots.growth(grown, results.problem, by, folder / name))
    return made
