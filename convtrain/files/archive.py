"""The training archive: everything a run starts from, as the cook phase packed it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from convtrain.errors import InputError
from convtrain.files.container import Container
from convtrain.files.manifest import entry, unusable
from convtrain.files.plans import check_blobs, read_plans
from convtrain.files.resource import Resource, open_resource
from convtrain.graph.types import Plan

ARCHIVE_NAME = "train.res"
"""The archive's name inside the training folder."""
STAMP_NAME = ".cook"
"""Beside it, what cook made it of."""


class TrainingArchive(Resource):
    """An open training archive; checkpoints carry its ``identity``.

    ``plans`` are the pass graphs in the recipe's order, ``seeds`` the blob of each first content by name
    (``"weights"``, ``"target"``, …), ``compiler`` the Slang build tag and ``version`` the convtrain that cooked it.
    ``left_out`` says of plans that the recipe has for other models why they are not among them. ``picture`` is the
    SHA-256 of the image file that was cooked.
    """

    def __init__(self, container: Container) -> None:
        """Raises InputError for a manifest that does not describe a training archive."""
        super().__init__(container)
        self.compiler: str = entry(container, "compiler", str)
        self.version: str = entry(container, "convtrain", str)
        self.plans: Mapping[str, Plan] = read_plans(container)
        self.seeds: Mapping[str, str] = entry(container, "seeds", dict[str, str])
        self.left_out: Mapping[str, str] = entry(container, "left_out", dict[str, str])
        image = self.config.get("image")
        self.picture: str | None = image.get("sha256") if isinstance(image, dict) else None
        check_blobs(container, dict(self.plans))
        if not {*self.seeds.values()} <= {*container.blobs} or "weights" not in self.seeds:
            raise unusable(container, "names seeds that are not there")
        if container.blobs[self.seeds["weights"]].size != self.weights.nbytes:
            raise unusable(container, "has seed weights of another size than their layout")


def open_archive(path: Path) -> TrainingArchive:
    """Open a training archive: ``path`` is the file, or the training folder that holds ``train.res``.

    Raises InputError, with what to do, when there is none, when it is damaged, or when it is another kind of file.
    """
    file = path / ARCHIVE_NAME if path.is_dir() else path
    if not file.exists():
        raise InputError(f"There is no training archive {file}: make one with `convtrain cook`, or name its folder.")
    return open_resource(file, "training", TrainingArchive)
