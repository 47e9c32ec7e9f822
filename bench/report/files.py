"""Writes the results of a run: ``bench.md``, ``bench.json`` and the plots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
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
    _remove(folder, (PAGE_NAME, *PLOT_NAMES))
    return written


def _remove(folder: Path, names: Iterable[str]) -> None:
    """What is there of these files, and can be removed."""
    for name in names:
        with suppress(OSError):
            (folder / name).unlink()


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
        made, failed = _plots(results, folder)
    except ImportError:
        text += (
            "\nNo plots, as matplotlib is not installed here: pip install 'convtrain[bench]', then draw them with\n"
            f"python -m bench --plot {source}\n"
        )
    else:
        written += made
        text += "".join(f"\nNo plot {path}: {reason}\n" for path, reason in failed.items())
        _remove(folder, (name for name in PLOT_NAMES if folder / name not in made))
    return f"{text}\nwrote {', '.join(map(str, written))}"


def _plots(results: Results, folder: Path) -> tuple[list[Path], dict[Path, str]]:
    """Those that were written, and why others were not. Raises ImportError without matplotlib."""
    made, failed = [], {}
    for name, plot in _wanted(results):
        path = folder / name
        try:
            made.append(plot(path=path))
        except OSError as error:
            failed[path] = error.strerror or str(error)
    return made, failed


def _wanted(results: Results) -> Iterator[tuple[str, Callable[..., Path]]]:
    """The plots for which something was measured, by file name."""
    timed = [row for row in results.rows if row.ms_per_epoch]
    if timed:
        yield BARS_NAME, partial(plots.bars, timed)
        yield CURVES_NAME, partial(plots.curves, timed)
    for by, name in GROWTH_NAMES.items():
        grown = [row for row in results.sweep if row.ms_per_epoch and plots.on_axis(row, results.problem, by)]
        if len({getattr(row, by) for row in grown}) > 1:
            yield name, partial(plots.growth, grown, results.problem, by)
