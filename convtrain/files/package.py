"""The model package: enough to draw the image anywhere, without the archive that trained it.

It holds the averaged weights, the inference passes of every plan with the SPIR-V of every variant, the image size, the
coordinate convention and the metrics. The same training gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convtrain import __version__
from convtrain.errors import InputError
from convtrain.files.archive import TrainingArchive
from convtrain.files.checkpoint import finite
from convtrain.files.container import Container, Data, sha256, write_container
from convtrain.files.inference import inference_plan
from convtrain.files.manifest import entry, unusable
from convtrain.files.plans import blobs_of, check_blobs, read_plans
from convtrain.files.resource import Resource, open_resource
from convtrain.graph.types import Plan, to_json

PACKAGE_NAME = "model.res"
"""The package's name inside the output folder."""

COORDINATES = (
    "Pixel centres, one scale for both axes: s = 2/max(height, width); "
    "x = (j + 0.5 + offset_x - width/2)*s to the right, y = (i + 0.5 + offset_y - height/2)*s downwards; "
    "i, j count rows and columns of the image from 0 (negative inside the halo); offsets are in pixels, 0 in training."
)
"""How image positions become the network's inputs, for whoever reads a package without this program."""


def write_package(path: Path, archive: TrainingArchive, plan: str, weights: Data, metrics: Mapping[str, Any]) -> str:
    """Write a model package atomically and return its identity.

    ``plan`` names the plan that was trained and measured; ``weights`` are the averaged weights, float32 in the
    archive's layout; non-finite metrics are stored as null. Raises ValueError for weights of another length,
    InputError or RunError when the file cannot be written.
    """
    if memoryview(weights).nbytes != archive.weights.nbytes:
        raise ValueError(f"{memoryview(weights).nbytes} bytes of weights instead of {archive.weights.nbytes}")
    name = sha256(weights)
    plans = [inference_plan(plan, name) for plan in archive.plans.values()]
    blobs: dict[str, Data] = {blob: archive.blob(blob) for plan in plans for blob in blobs_of(plan) if blob != name}
    blobs[name] = weights
    manifest = {
        "archive": archive.identity,
        "convtrain": __version__,
        "compiler": archive.compiler,
        "config": archive.config,
        "image": {"height": archive.config["height"], "width": archive.config["width"], "channels": 3},
        "coordinates": COORDINATES,
        "weights": {**archive.weights.to_json(), "blob": name},
        "plan": plan,
        "metrics": finite(metrics),
        "plans": {plan.name: to_json(plan) for plan in plans},
    }
    return write_container(path, "model", manifest, blobs, raw=[name])


class ModelPackage(Resource):
    """An open model package.

    ``plans`` hold inference passes only, in order of preference of the archive; executing one with :meth:`blob` as
    the source of its seeds draws the image (height × width × 3 float32) into the buffer of its ``output`` role.
    """

    def __init__(self, container: Container) -> None:
        """Raises InputError for a manifest that does not describe a model package."""
        super().__init__(container)
        self.archive: str = entry(container, "archive", str)
        self.metrics: dict[str, Any] = entry(container, "metrics", dict[str, Any])
        self.plan: str = entry(container, "plan", str)
        self.coordinates: str = entry(container, "coordinates", str)
        self.plans: Mapping[str, Plan] = read_plans(container)
        check_blobs(container, dict(self.plans))
        image = entry(container, "image", dict[str, int])
        self.height, self.width = image.get("height", 0), image.get("width", 0)
        self.weights_blob: str = entry(container, "weights", dict[str, Any]).get("blob", "")
        if min(self.height, self.width) < 1:
            raise unusable(container, "has no valid image size")
        stored = container.blobs.get(str(self.weights_blob))
        if stored is None or stored.size != self.weights.nbytes:
            raise unusable(container, "has weights of another size than their layout")

    def averaged_weights(self) -> memoryview:
        """The weights that the package carries, float32. Raises InputError."""
        return self.blob(self.weights_blob)


def open_package(path: Path) -> ModelPackage:
    """Open a model package. Raises InputError for a file that is missing, damaged, or of another kind."""
    if not path.exists():
        raise InputError(f"There is no model package {path}: `convtrain run` writes one when it ends.")
    return open_resource(path, "model", ModelPackage)
