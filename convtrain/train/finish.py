"""The end of a run: average the weights, evaluate them, write the model package and the picture."""

from __future__ import annotations

import math
from pathlib import Path

from convtrain.errors import RunError
from convtrain.files.package import PACKAGE_NAME, write_package
from convtrain.train.loop import kept
from convtrain.train.metrics import Metrics, measure
from convtrain.train.picture import write_png
from convtrain.train.session import Session
from convtrain.train.stepper import set_control

PICTURE_NAME = "out.png"


def apply_average(session: Session) -> None:
    """Replace the weights on the device by the mean of the last recorded ones (raw weights when there are none).

    Done after the last checkpoint: a checkpoint never holds averaged weights.
    """
    roles, engine = session.plan.roles, session.engine
    count = min(roles.average_window, session.epoch)
    if count == 0:
        return
    set_control(engine, session.plan, "ring_first", (session.epoch - count) % roles.average_window)
    set_control(engine, session.plan, "ring_count", count)
    engine.run(roles.average)


def evaluate(session: Session) -> Metrics:
    """Run the inference passes alone and compare their output with the image."""
    session.engine.run(tuple(item.index for item in session.plan.passes if item.infer))
    return measure(session.picture(), session.target, session.epoch)


def finish(session: Session, out: Path) -> Metrics:
    """Write ``model.res`` and ``out.png`` in folder ``out``; the same state gives the same bytes.

    Raises RunError for a picture with values that are not finite: huge weights can give one. Nothing is written then.
    """
    apply_average(session)
    metrics = evaluate(session)
    if math.isnan(metrics.psnr) or metrics.psnr == -math.inf:
        raise RunError(
            f"Training diverged: the picture of epoch {session.epoch} has values that are not finite. No model and no "
            f"picture were written; what was in their place is kept. {kept(session.epoch)} "
            "Cook with a lower lr (--set lr=…)."
        )
    weights = session.engine.read(session.plan.roles.weights)
    write_package(out / PACKAGE_NAME, session.archive, session.plan.name, weights, metrics.to_json())
    write_png(out / PICTURE_NAME, session.picture())
    return metrics
