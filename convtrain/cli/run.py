"""``convtrain run``: train, checkpoint, evaluate, export."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from convtrain.cli.paths import folder
from convtrain.errors import InputError
from convtrain.files.archive import STAMP_NAME
from convtrain.files.atomic import ensure_folder
from convtrain.files.checkpoint import finite
from convtrain.files.container import sha256
from convtrain.files.lock import LOCK_NAME
from convtrain.files.outputs import check_outputs
from convtrain.files.package import PACKAGE_NAME
from convtrain.files.regular import read_regular
from convtrain.report.console import StatusConsole
from convtrain.report.progress import Progress, patience
from convtrain.report.timing import TimingLog
from convtrain.train.dumps import Dump, parse_dumps, require_available, write_dumps
from convtrain.train.finish import PICTURE_NAME, finish
from convtrain.train.loop import LoopResult, train
from convtrain.train.metrics import Metrics
from convtrain.train.session import Session, SessionOptions
from convtrain.train.stepper import EpochReport
from convtrain.train.stopping import StopFlag, catch_stop_signals

DEFAULT_EPOCHS = 600
MAX_EPOCHS = 999_999_999
DIVERGED = "warning: the picture is nothing like the image: training diverged. Cook with a lower lr (--set lr=…)."


def run(
    n: Annotated[str | None, typer.Argument(metavar="[N]", help="Epochs to train; 0 exports again.")] = None,
    until: Annotated[int | None, typer.Option(help="Stop at this epoch, counted over all runs.")] = None,
    res: Annotated[
        Path, typer.Option(parser=folder, metavar="DIR", help="Folder with the archive and the checkpoint.")
    ] = Path("res_train"),
    out: Annotated[
        Path, typer.Option(parser=folder, metavar="DIR", help="Folder for the model package and the picture, out.png.")
    ] = Path("res"),
    device: Annotated[str | None, typer.Option(help="Index or part of the name, as `devices` lists them.")] = None,
    plan: Annotated[str, typer.Option(help="A plan of the archive, or auto for the fastest that fits.")] = "auto",
    fresh: Annotated[bool, typer.Option("--fresh", help="Ignore the checkpoint and start over.")] = False,
    checkpoint_every: Annotated[int, typer.Option(help="Epochs between checkpoints; 0: only at the end.")] = 100,
    dump: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE.npy", help="Write a buffer, as float32, after the last epoch."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the results as JSON on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no summary.")] = False,
) -> None:
    """Train N epochs (600 unless told) from the archive in res_train, then write the model package and the picture."""
    epochs = _epochs(n, until)
    if checkpoint_every < 0:
        raise InputError(f"--checkpoint-every {checkpoint_every}: give a number of epochs, 0 or more.")
    console = StatusConsole(quiet=quiet)
    results = console if json_ else StatusConsole(quiet=quiet, results=True)
    with catch_stop_signals() as stop, _open(SessionOptions(res, device, plan, fresh), console) as session:
        dumps = parse_dumps(session.plan, dump or [])
        goal = session.epoch + epochs if until is None else until
        if goal <= session.epoch:
            require_available(session, dumps)
            if until is not None:
                past = f", past {goal}" if goal < session.epoch else ""
                console.print(f"Already at epoch {session.epoch}{past}: nothing to train. --fresh starts over.")
        _check_outputs(session, out, dumps)
        console.print(session.describe())
        timing = TimingLog(session.execution) if os.environ.get("CONV_TIME", "") not in ("", "0") else None
        history: list[EpochReport] = []
        result = _train(session, goal, checkpoint_every, stop, timing, console, history)
        if stop.signal is not None:
            console.print(_stopped(session, goal))
            raise typer.Exit(stop.exit_code)
        metrics = _finish(session, out, dumps, trained=result.epochs > 0)
        if timing is not None and result.epochs:
            # asked for by its own switch, so --quiet does not hide it
            StatusConsole(results=not json_).print(timing.render(result.seconds))
        if metrics.psnr < 0:  # grey would be nearer
            StatusConsole().print(DIVERGED)
        results.print(f"averaged weights of the last epochs: {metrics}")
        results.print(f"wrote {out / PACKAGE_NAME} and {out / PICTURE_NAME}")
        if json_:
            typer.echo(json.dumps(_summary(session, result, history, metrics, out)))


def _open(options: SessionOptions, console: StatusConsole) -> Session:
    """The session. Nearly all the time that it can take is the driver's compiler's."""
    with patience(console):
        return Session(options)


def _epochs(n: str | None, until: int | None) -> int:
    """The number of epochs asked for, from the argument or the environment's ``nStep``."""
    if n is not None and until is not None:
        raise InputError("Give either N or --until, not both.")
    if until is not None and not 0 <= until <= MAX_EPOCHS:
        raise InputError(f"--until {until}: give an epoch from 0 to {MAX_EPOCHS}.")
    name = "N"
    if n is None and until is None:
        name, n = "nStep", os.environ.get("nStep") or None  # noqa: SIM112 (the name is fixed)
    if n is None:
        return DEFAULT_EPOCHS
    if not (n.isascii() and n.isdigit()) or len(n) > len(str(MAX_EPOCHS)) or int(n) > MAX_EPOCHS:
        raise InputError(f"{name} is the number of epochs, from 0 to {MAX_EPOCHS}, and {n!r} is not.")
    return int(n)


def _stopped(session: Session, goal: int) -> str:
    """What a run that a signal stopped leaves, and how to go on."""
    if session.epoch == 0:
        return "Stopped: nothing was trained yet. Run again to start."
    kept = f"Stopped: epoch {session.epoch} is in {session.checkpoint_path}."
    if session.epoch < goal:
        return f"{kept} Run again to continue."
    return f"{kept} All is trained: `convtrain run 0` writes the model package and the picture."


def _check_outputs(session: Session, out: Path, dumps: list[Dump]) -> None:
    """Refuse, before any epoch, what could not be written after the last one, or would replace what must stay.

    Raises InputError.
    """
    archive, checkpoint = session.archive.path, session.checkpoint_path
    package, picture = out / PACKAGE_NAME, out / PICTURE_NAME
    used = [archive, *(session.folder / name for name in (LOCK_NAME, STAMP_NAME))]
    used += (session.folder / "pipelines").glob("*")
    check_outputs([dump.path for dump in dumps], [*used, checkpoint, package, picture])
    check_outputs([checkpoint], used, kind="checkpoint")
    ensure_folder(out)
    check_outputs([package], [*used, checkpoint], kind="model")
    check_outputs([picture], [*used, checkpoint, package])
    if picture.is_file() and sha256(read_regular(picture)) == session.archive.picture:
        raise InputError(f"Cannot write {picture}: it is the picture that was cooked. Give another folder with --out.")


def _train(
    session: Session,
    goal: int,
    checkpoint_every: int,
    stop: StopFlag,
    timing: TimingLog | None,
    console: StatusConsole,
    history: list[EpochReport],
) -> LoopResult:
    def run(active: tuple[int, ...], repeat: int = 1) -> None:
        if timing is None:
            session.engine.run(active, repeat)
        else:
            for _ in range(repeat):
                timing.add(session.engine.measure(active))

    def watch(report: EpochReport) -> None:
        history.append(report)
        progress.update(report)

    with Progress(session.epoch, goal, console, compiled=session.engine.compiled) as progress:
        return train(
            session,
            session.stepper(run),
            goal,
            checkpoint_every=checkpoint_every,
            stop=stop,
            watch=watch,
        )


def _finish(session: Session, out: Path, dumps: list[Dump], *, trained: bool) -> Metrics:
    """Dump before averaging where epochs ran, so that every buffer is the last epoch's."""
    if trained:
        write_dumps(session, dumps)
        return finish(session, out)
    raw = [dump for dump in dumps if dump.buffer.dump]
    write_dumps(session, raw)
    metrics = finish(session, out)
    write_dumps(session, [dump for dump in dumps if dump not in raw])
    return metrics


def _summary(
    session: Session, result: LoopResult, history: list[EpochReport], metrics: Metrics, out: Path
) -> dict[str, Any]:
    """The results as JSON. ``history`` has epoch and mse wherever the host looked; ``memory`` is in bytes."""
    errors = (finite({"mse": report.loss["mse"]})["mse"] for report in history)
    return {
        "device": session.execution.snapshot.name,
        "driver": session.execution.snapshot.driver_info,
        "plan": session.plan.name,
        "storage": session.execution.storage,
        "epochs": result.epochs,
        "seconds": result.seconds,
        "ms_per_epoch": 1e3 * result.seconds / result.epochs if result.epochs else None,
        "loss": finite(result.report.loss) if result.report else None,
        "lr": result.report.lr if result.report else None,
        "history": [[report.epoch, error] for report, error in zip(history, errors, strict=True)],
        "memory": session.execution.device_memory.total + session.execution.host_memory.total,
        "metrics": finite(metrics.to_json()),
        "checkpoint": str(session.checkpoint_path) if session.epoch else None,
        "model": str(out / PACKAGE_NAME),
        "picture": str(out / PICTURE_NAME),
    }
