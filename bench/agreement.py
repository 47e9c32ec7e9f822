"""``python -m bench.agreement``: do the plans and variants that this device gets compute what scalar fp32 computes?

Four questions, asked of every plan of the archive through the command line, with the scalar fp32 kernels of plan
``reference`` as the oracle:

* the gradient of every weight slot, and the output, on fresh weights, on those that the oracle trained, and on those
  that the plan itself did;
* the quality that training reaches on the way, averaged weights, every sixth of the run; and, for comparison, how far
  the oracle strays from itself when the first epoch is one in fp32 with another order of sums;
* the same bytes from a second run, and from one that was interrupted;
* 8-bit PSNR at the end, for each seed.

Prints a table; exits with 1 where an answer is not what it should be.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bench.options import names, positive
from bench.problem import PICTURE_NAME, Problem, photograph, save_problem
from bench.processes import INTERRUPTED, RUNNING, heed_signals, run, together
from bench.report.tables import markdown
from bench.vulkan.trainer import SCALAR, switches_for

Array = NDArray[np.float64]
T = TypeVar("T")
R = TypeVar("R")

ORACLE = "reference, scalar"
CONTROL = "reference, scalar, after an epoch of fused, scalar"
OUTPUT_LIMIT, GRADIENT_LIMIT = 5e-3, 2e-2  # ‖Δ‖/‖oracle‖, the latter by weight slot
CURVE_LIMIT = 0.3  # dB
QUALITY_LIMIT, QUALITY_EPOCHS = 39.0, 600  # dB after rounding to 8 bits, of the seed preset
TIMEOUT = 600.0


@dataclass(frozen=True)
class Candidate:
    """A plan, with the switches that decide which of its variants run."""

    name: str
    plan: str
    switches: dict[str, str]


NUDGE = Candidate("fused, scalar", "fused", SCALAR)  # adds up in another order than the oracle, in fp32 too


class Failed(Exception):
    """A command that did not do its work; the text says which and why."""


def convtrain(candidate: Candidate | None, folder: Path, *arguments: str | int | Path, parse: bool = False) -> Any:
    """Run ``convtrain`` in a folder that holds ``res_train``; its JSON with ``parse``."""
    words = [*map(str, arguments), *(["--plan", candidate.plan] if candidate else [])]
    switches = candidate.switches if candidate else {}
    command = [sys.executable, "-m", "convtrain", *words]
    outcome = run(command, cwd=folder, timeout=TIMEOUT, parse=parse, variables=switches)
    if outcome.error:
        set_by = "".join(f"{name}={value} " for name, value in switches.items())
        said = [line for line in outcome.stderr.splitlines() if line.startswith("error: ")]  # whole, advice and all
        raise Failed(f"{set_by}convtrain {' '.join(words)}: {said[-1] if said else outcome.error}")
    return outcome.data


def candidates(archive: Path, wanted: Collection[str] = ()) -> list[Candidate]:
    """The oracle, then the plans of the archive (those ``wanted``, or all) as this device runs them."""
    plans = convtrain(None, archive.parent.parent, "info", archive, "--json", parse=True)["plans"]
    for name in wanted:
        if name not in plans:
            raise Failed(f"There is no plan {name} in {archive}: its plans are {', '.join(plans)}")
    return [
        Candidate(ORACLE, "reference", SCALAR),
        *(Candidate(name, name, switches_for(name, plans)) for name in plans if not wanted or name in wanted),
    ]


def fresh(source: Path, target: Path) -> Path:
    """A copy of a folder with its ``res_train``, for one run to change."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("spirv"))
    return target


def one_epoch(candidate: Candidate, folder: Path) -> dict[str, Array]:
    """Gradient and output of one more epoch."""
    dumps = [f"--dump={name}={name}.npy" for name in ("GW", "Out")]
    convtrain(candidate, folder, "run", 1, "--quiet", *dumps)
    return {name: np.load(folder / f"{name}.npy").astype(np.float64).ravel() for name in ("GW", "Out")}


def error(found: Array, expected: Array) -> float:
    """‖found − expected‖ / ‖expected‖; infinite where a value is not finite."""
    distance, scale = float(np.linalg.norm(found - expected)), float(np.linalg.norm(expected))
    return distance / scale if np.isfinite(distance) and scale else float("inf") if distance else 0.0


def gradient_errors(found: Array, expected: Array, slots: Iterable[dict[str, Any]]) -> dict[str, float]:
    """The error of every weight slot."""
    parts = {slot["name"]: slice(slot["offset"], slot["offset"] + int(np.prod(slot["shape"]))) for slot in slots}
    return {name: error(found[part], expected[part]) for name, part in parts.items()}


class Examination:
    """Asks the questions and keeps what was answered: rows of the table, and whether all is well.

    ``jobs`` commands run at a time.
    """

    def __init__(self, source: Path, work: Path, epochs: int, *, plans: Collection[str] = (), jobs: int = 1) -> None:
        self.work, self.epochs, self.jobs = work, epochs, jobs
        self.source = fresh(source, work / "source")
        archive = self.source / "res_train" / "train.res"
        self.oracle, *self.others = candidates(source / "res_train" / "train.res", plans)
        info = convtrain(None, self.source, "info", archive, "--json", parse=True)
        self.slots, self.nudges = info["weights"]["slots"], [NUDGE] if NUDGE.plan in info["plans"] else []
        self.rows: list[list[str]] = []
        self.well = True

    def warm_up(self) -> None:
        """Let the driver compile, once for all the runs to come: their folders are copies. Leaves first weights."""
        for candidate in (self.oracle, *self.nudges, *self.others):
            convtrain(candidate, self.source, "run", 1, "--fresh", "--quiet")
        (self.source / "res_train" / "checkpoint.res").unlink()

    def answer(self, question: str, candidate: str, text: str, well: bool | None) -> None:
        """``well``: whether it is as it should be; None for what is only told."""
        self.rows.append([question, candidate, text, {True: "yes", False: "NO", None: "–"}[well]])
        self.well &= well is not False
        print(f"{question}: {candidate}: {text}", file=sys.stderr, flush=True)

    def _each(self, ask: Callable[[T], R], of: Sequence[T]) -> list[R]:
        return together(ask, of, self.jobs)

    def _copy(self, source: Path, purpose: str, candidate: Candidate) -> Path:
        return fresh(source, self.work / f"{purpose}-{candidate.name}")

    def gradients(self, question: str, bases: Mapping[str, Path]) -> None:
        """Output and gradient of one epoch of every plan and of the oracle, from ``bases`` by the plan's name."""

        def ask(pair: tuple[Candidate, Path]) -> dict[str, Array]:
            candidate, base = pair
            return one_epoch(candidate, self._copy(base, f"epoch-{base.name}", candidate))

        mine = [(candidate, bases[candidate.name]) for candidate in self.others]
        oracles = [(self.oracle, base) for base in dict.fromkeys(bases[candidate.name] for candidate in self.others)]
        asked = [*oracles, *mine]
        names = [(candidate.name, base) for candidate, base in asked]
        answers = dict(zip(names, self._each(ask, asked), strict=True))
        for candidate, base in mine:
            found, expected = answers[candidate.name, base], answers[self.oracle.name, base]
            slots = gradient_errors(found["GW"], expected["GW"], self.slots)
            worst, output = max(slots, key=lambda name: slots[name]), error(found["Out"], expected["Out"])
            text = f"Out {output:.1e}, GW at worst {slots[worst]:.1e} ({worst})"
            well = output <= OUTPUT_LIMIT and slots[worst] <= GRADIENT_LIMIT
            self.answer(question, candidate.name, text, well)

    def curves(self, keep: int) -> dict[str, Path]:
        """PSNR of the averaged weights on the way, against the oracle's. Gives all folders after ``keep``."""
        stops = sorted({max(1, self.epochs * part // 6) for part in range(1, 7)})
        control = Candidate(CONTROL, self.oracle.plan, self.oracle.switches)
        kept: dict[str, Path] = {}

        def ask(candidate: Candidate) -> list[float]:
            folder, reached = self._copy(self.source, "curve", candidate), []
            for nudge in self.nudges if candidate == control else ():
                convtrain(nudge, folder, "run", 1, "--quiet")
            for stop in sorted({*stops, keep}):
                found = convtrain(candidate, folder, "run", "--until", stop, "--json", "--quiet", parse=True)
                reached += [float(found["metrics"]["psnr"])] if stop in stops else []
                if stop == keep:
                    kept[candidate.name] = fresh(folder, self.work / f"kept-{candidate.name}")
            return reached

        asked = (self.oracle, *([control] if self.nudges else []), *self.others)
        answers = self._each(ask, asked)
        for candidate, reached in zip(asked, answers, strict=True):
            apart = max(abs(mine - theirs) for mine, theirs in zip(reached, answers[0], strict=True))
            text = " ".join(f"{value:.2f}" for value in reached) + f" dB, at most {apart:.2f} apart"
            well = None if candidate == control else apart <= CURVE_LIMIT
            self.answer(f"PSNR every {stops[0]} epochs", candidate.name, text, well)
        return kept

    def repeats(self, epochs: int) -> None:
        """The checkpoint's bytes after a second run, and after one in two parts."""

        def ask(candidate: Candidate) -> bool:
            bytes_of = []
            for parts in ((epochs,), (epochs,), (epochs - epochs // 3, epochs // 3)):
                folder = self._copy(self.source, "repeat", candidate)
                for part in parts:
                    convtrain(candidate, folder, "run", part, "--quiet")
                bytes_of.append((folder / "res_train" / "checkpoint.res").read_bytes())
            return bytes_of[0] == bytes_of[1] == bytes_of[2]

        for candidate, same in zip(self.others, self._each(ask, self.others), strict=True):
            text = "run again and interrupted: same bytes" if same else "the bytes differ"
            self.answer(f"{epochs} epochs twice", candidate.name, text, same)

    def quality(self, sources: Sequence[tuple[str, Path]], limit: float) -> None:
        """8-bit PSNR in dB at the end of a training with the plan that the device prefers."""

        def ask(place: Path) -> dict[str, Any]:
            folder = fresh(place, self.work / f"quality-{places.index(place)}")
            found: dict[str, Any] = convtrain(None, folder, "run", self.epochs, "--json", "--quiet", parse=True)
            return found

        places = [place for _, place in sources]
        wanted = f", at least {limit:.1f} wanted" if limit else ""
        for (name, _), found in zip(sources, self._each(ask, places), strict=True):
            value = float(found["metrics"]["psnr_u8"])
            self.answer(f"{name}, {self.epochs} epochs", found["plan"], f"{value:.2f} dB{wanted}", value >= limit)


def cooked(seeds: Iterable[str], folder: Path) -> Iterator[tuple[str, Path]]:
    """The seed preset cooked for each seed, in folders of their own."""
    for seed in seeds:
        place = folder / f"cooked-{seed}"
        save_problem(place, Problem(), photograph(Problem().height))
        convtrain(None, place, "cook", PICTURE_NAME, "--preset=seed", f"--seed={seed}")
        yield f"seed {seed}", place


def main() -> int:
    """Ask, print, judge. 1 where an answer is not as it should be, 2 where a command failed, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m bench.agreement", description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--seeds", default="0,1,2", metavar="A,B", help="seeds of the seed preset (0,1,2)")
    add(
        "--folders",
        metavar="A,B",
        help="cooked folders (each with res_train) instead; as with seeds, all questions go to the first, and "
        "the others are only trained for their PSNR at the end",
    )
    add("--epochs", type=positive, default=600, metavar="N", help="epochs of a training (600)")
    add("--plans", type=names, default=(), metavar="A,B", help="plans of the archive; all unless given")
    add(
        "--jobs", type=positive, default=1, metavar="N", help="commands at a time; the device's memory must suffice (1)"
    )
    add(
        "--trained",
        type=positive,
        default=300,
        metavar="N",
        help="epochs before gradients are compared on trained weights (300)",
    )
    given = parser.parse_args()
    heed_signals()
    exams: list[Examination] = []
    try:
        with tempfile.TemporaryDirectory(prefix="convtrain-agreement-") as temporary:
            examine(given, Path(temporary), exams)
    except Failed as failure:
        print(failure if given.folders else f"{failure} --folders examines a model of your own.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        RUNNING.end(closed=False)
        print("stopped", file=sys.stderr)
        print_rows(exams)
        return INTERRUPTED
    print_rows(exams)
    return 0 if all(exam.well for exam in exams) else 1


def examine(given: argparse.Namespace, work: Path, exams: list[Examination]) -> None:
    """Ask everything. The examination is put into ``exams`` first, for the answers to survive an interruption."""
    if given.folders:
        sources = [(name, path) for path, name in {Path(name).resolve(): name for name in names(given.folders)}.items()]
        for _, folder in sources:
            if not (folder / "res_train" / "train.res").is_file():
                raise Failed(f"{folder} has no res_train/train.res: cook there first")
    else:
        sources = list(cooked(given.seeds.split(","), work))
    exam = Examination(sources[0][1], work, given.epochs, plans=given.plans, jobs=given.jobs)
    exams.append(exam)
    exam.warm_up()
    exam.gradients("one epoch, fresh weights", {item.name: exam.source for item in exam.others})
    kept, after = exam.curves(given.trained), f"one epoch after {given.trained}"
    exam.gradients(f"{after} of the oracle", {item.name: kept[exam.oracle.name] for item in exam.others})
    exam.gradients(f"{after} of its own", kept)
    exam.repeats(max(3, given.epochs // 6))
    judged = not given.folders and given.epochs >= QUALITY_EPOCHS
    exam.quality(sources, QUALITY_LIMIT if judged else 0.0)


def print_rows(exams: Iterable[Examination]) -> None:
    """The table of what was answered, if anything was."""
    for exam in exams:
        if exam.rows:
            print(markdown(["question", "plan", "answer", "ok"], exam.rows))


if __name__ == "__main__":
    sys.exit(main())
