"""The kinds of resource file, and what to say when one is given where another is needed."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

KINDS = ("training", "checkpoint", "model")

_NAMES = {"training": "a training archive", "checkpoint": "a checkpoint", "model": "a model package"}
_ADVICE = {
    ("training", "model"): "Train it with `convtrain run`, which writes the model package.",
    ("training", "checkpoint"): "Train it with `convtrain run`, which writes the checkpoint.",
    ("checkpoint", "model"): "`convtrain run 0` writes the model package of a checkpoint.",
    ("checkpoint", "training"): "Give the train.res that lies beside it.",
    ("model", "training"): "Draw it with `convtrain render`; `convtrain cook` makes a training archive.",
    ("model", "checkpoint"): "Draw it with `convtrain render`; checkpoints lie in the training folder.",
}


def wrong_kind(path: Path, found: str, wanted: Collection[str]) -> str:
    """The sentence for a file of kind ``found`` where one of ``wanted`` is needed, and what to do with it instead."""
    needed = " or ".join(_NAMES[kind] for kind in KINDS if kind in wanted)
    advice = _ADVICE.get((found, next(iter(wanted), "")), "")
    return f"{path} is {_NAMES[found]}, and {needed} is needed here. {advice}".rstrip()
