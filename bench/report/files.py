"""Writes the results of a run: ``bench.md``, ``bench.json`` and the plots."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from bench.contest import Contest
from bench.report import plots
from bench.report.page import page


def write(contest: Contest, folder: Path) -> str:
    """Write everything into ``folder``, created if need be; gives the text to print."""
    folder.mkdir(parents=True, exist_ok=True)
    text = page(contest)
    (folder / "bench.md").write_text(text)
    results = {
        "machine": asdict(contest.machine),
        "problem": asdict(contest.preset.problem),
        "bound": contest.bound(),
        "rows": [row.to_json() for row in contest.rows],
        "sweep": [row.to_json() for row in contest.sweep],
    }
    (folder / "bench.json").write_text(json.dumps(results, indent=1) + "\n")
    written = [folder / "bench.md", folder / "bench.json", *_plots(contest, folder)]
    return f"{text}\nwrote {', '.join(map(str, written))}"


def _plots(contest: Contest, folder: Path) -> list[Path]:
    try:
        import matplotlib  # noqa: F401  (only whether it is there)
    except ImportError:
        contest.say("no plots: matplotlib is not installed (pip install 'convtrain[bench]')")
        return []
    timed = [row for row in contest.rows if row.ms_per_epoch]
    made = [plots.bars(timed, folder / "epoch.png"), plots.curves(timed, folder / "quality.png")] if timed else []
    grown = [row for row in contest.sweep if row.ms_per_epoch]
    if grown:
        fixed = contest.preset.problem
        made += [plots.growth(grown, fixed, "height", folder / "side.png")]
        made += [plots.growth(grown, fixed, "nf", folder / "features.png")]
    return made
