"""``convtrain export``: weights by slot name, or every content of a resource file, for other programs."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from convtrain.errors import InputError
from convtrain.files.archive import TrainingArchive
from convtrain.files.atomic import atomic_write, ensure_folder, write_error
from convtrain.files.checkpoint import Checkpoint
from convtrain.files.container import Container
from convtrain.files.opening import AnyResource, open_any, weights_of
from convtrain.files.outputs import check_distinct, check_outputs
from convtrain.files.tensors import write_npz, write_safetensors
from convtrain.graph.types import Plan


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE.res", help="A training archive, checkpoint or model package.")],
    npz: Annotated[Path | None, typer.Option(help="Write the weights here as NumPy's .npz.")] = None,
    safetensors: Annotated[Path | None, typer.Option(help="Write the weights here as .safetensors.")] = None,
    unpack: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write every content to this new folder, SPIR-V included.")
    ] = None,
) -> None:
    """Write the weights by slot name, or all contents, for other programs.

    The weights are the seeds of a training archive, the raw ones of a checkpoint, the averaged ones of a model package.
    """
    if npz is None and safetensors is None and unpack is None:
        raise InputError("Nothing to write: give --npz, --safetensors or --unpack.")
    outputs = [path for path in (npz, safetensors) if path is not None]
    if unpack is None:
        check_outputs(outputs, [file])
    else:
        check_distinct([unpack], [file])
        _check_new(unpack)
        check_outputs(outputs, [file, unpack])
    container, resource = open_any(file)
    with container:
        if unpack is not None:
            _unpack(unpack, container, resource)
        for path, writer in ((npz, write_npz), (safetensors, write_safetensors)):
            if path is not None:
                ensure_folder(path.parent)
                with atomic_write(path) as output:
                    writer(output, resource.weights.split(weights_of(resource)))
    for path in (unpack, npz, safetensors):
        if path is not None:
            typer.echo(f"wrote {path}", err=True)


def _check_new(folder: Path) -> None:
    try:
        taken = folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir())))
    except OSError as error:
        raise write_error(folder, error) from error
    if taken:
        raise InputError(f"{folder} exists and is not an empty folder: give a new one.")


def _unpack(folder: Path, container: Container, resource: AnyResource) -> None:
    """Fill a new folder under a temporary name and rename it, so that it is complete or not there."""
    ensure_folder(folder.parent)
    temporary = folder.with_name(f".{folder.name[:48]}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.mkdir()
        text = json.dumps(container.manifest, indent=1, ensure_ascii=False)
        (temporary / "manifest.json").write_text(f"{text}\n", encoding="utf-8")
        written = set()
        for name, blob in _contents(resource):
            written.add(blob)
            target = temporary / name
            if target.exists():  # two names that differ only in characters a file name should not have
                target = target.with_name(f"{target.stem}-{blob[:8]}{target.suffix}")
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(container.blob(blob))
        for blob in sorted(set(container.blobs) - written):
            (temporary / f"{blob}.bin").write_bytes(container.blob(blob))
        os.replace(temporary, folder)
    except OSError as error:
        raise write_error(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _contents(resource: AnyResource) -> Iterator[tuple[str, str]]:
    """Relative file names and the blobs (SHA-256) that go there."""
    if isinstance(resource, Checkpoint):
        yield from ((_plain(name), blob) for name, blob in resource.names.items())
        return
    if isinstance(resource, TrainingArchive):
        yield from ((f"{_plain(name)}.bin", blob) for name, blob in resource.seeds.items())
    else:
        yield "weights.bin", resource.weights_blob
    for plan in resource.plans.values():
        yield from _shaders(plan)


def _shaders(plan: Plan) -> Iterator[tuple[str, str]]:
    for item in plan.passes:
        for variant in item.variants:
            yield f"{_plain(plan.name)}/{item.index}-{_plain(item.name)}-{_plain(variant.name)}.spv", variant.spirv


def _plain(name: str) -> str:
    """The name without anything that could lead out of the folder."""
    return re.sub(r"[^\w.-]|^\.", "_", name)
