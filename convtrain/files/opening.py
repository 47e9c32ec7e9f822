"""Open a resource file of whatever kind it is."""

from __future__ import annotations

from pathlib import Path

from convtrain.files.archive import TrainingArchive
from convtrain.files.checkpoint import Checkpoint
from convtrain.files.container import Container, open_container
from convtrain.files.package import ModelPackage

AnyResource = TrainingArchive | Checkpoint | ModelPackage


def open_any(path: Path) -> tuple[Container, AnyResource]:
    """The container and what it means; closing either closes both. Raises InputError as ``open_container`` does."""
    container = open_container(path)
    try:
        if container.kind == "training":
            return container, TrainingArchive(container)
        if container.kind == "checkpoint":
            return container, Checkpoint(container)
        return container, ModelPackage(container)
    except BaseException:
        container.close()
        raise


def weights_of(resource: AnyResource) -> memoryview:
    """The weights a resource carries, float32: seeds of an archive, raw of a checkpoint, averaged of a package."""
    if isinstance(resource, TrainingArchive):
        return resource.blob(resource.seeds["weights"])
    if isinstance(resource, Checkpoint):
        return resource.raw_weights()
    return resource.averaged_weights()
