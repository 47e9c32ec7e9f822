"""``convtrain info``: what is in a resource file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from convtrain.files.archive import TrainingArchive
from convtrain.files.checkpoint import Checkpoint
from convtrain.files.container import VERSION, Container
from convtrain.files.opening import AnyResource, open_any
from convtrain.graph.types import Pass, Plan, to_json


def info(
    file: Annotated[Path, typer.Argument(metavar="FILE.res", help="A training archive, checkpoint or model package.")],
    json_: Annotated[bool, typer.Option("--json", help="Everything, as JSON on stdout.")] = False,
) -> None:
    """Say what is in a resource file: configuration, passes, buffers, weight slots, hashes, metrics."""
    container, resource = open_any(file)
    with container:
        found = describe(container, resource)
    if json_:
        typer.echo(json.dumps(found, indent=2))
    else:
        from convtrain.report.contents import show  # rich is slow to start, and JSON does without

        show(found)


def describe(container: Container, resource: AnyResource) -> dict[str, Any]:
    """The file's facts as JSON-able data; see the keys below. Weight offsets are in floats, sizes in bytes."""
    plans: Mapping[str, Plan] = (
        {resource.plan.name: resource.plan} if isinstance(resource, Checkpoint) else resource.plans
    )
    found: dict[str, Any] = {
        "kind": container.kind,
        "file": str(container.path),
        "bytes": container.size,
        "format": VERSION,
        "identity": container.identity,
        "convtrain": container.manifest.get("convtrain"),
        "config": resource.config,
        "plans": {name: [_pass(item) for item in plan.passes] for name, plan in plans.items()},
        "roles": {name: to_json(plan.roles) for name, plan in plans.items()},
        "buffers": {
            name: [{**to_json(buffer), "bytes": buffer.nbytes(plan.storages[0])} for buffer in plan.buffers]
            for name, plan in plans.items()
        },
        "weights": resource.weights.to_json(),
        "blobs": [
            {"sha256": blob.sha256, "bytes": blob.size, "stored": blob.stored, "packed": blob.packed}
            for blob in container.blobs.values()
        ],
    }
    if isinstance(resource, TrainingArchive):
        archive = {"compiler": resource.compiler, "seeds": dict(resource.seeds), "left_out": dict(resource.left_out)}
        return {**found, **archive}
    found |= {"archive": resource.archive, "metrics": resource.metrics}
    if isinstance(resource, Checkpoint):
        return {**found, "entries": resource.names}
    image = {"height": resource.height, "width": resource.width, "channels": 3}
    return {**found, "image": image, "coordinates": resource.coordinates}


def _pass(item: Pass) -> dict[str, Any]:
    return {
        "index": item.index,
        "name": item.name,
        "group": item.group,
        "infer": item.infer,
        "skip": item.skip,
        "covers": list(item.covers),
        "bytes": item.nbytes,
        "flops": item.flops,
        "ports": [to_json(port) for port in item.ports],
        "uniform": to_json(item.uniform),
        "variants": [to_json(variant) for variant in item.variants],
    }
