"""``convtrain render``: the picture from a model package alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from convtrain.errors import InputError
from convtrain.files.atomic import ensure_folder
from convtrain.files.outputs import check_outputs
from convtrain.render import render as render_picture
from convtrain.train.picture import write_png

MAX_SCALE = 16
"""A 16× render evaluates the network 256 times; beyond that the picture holds nothing new."""


def render(
    model: Annotated[Path, typer.Argument(metavar="MODEL.res", help="A model package, as run writes it.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The PNG to write.")] = Path("out.png"),
    scale: Annotated[int, typer.Option(help=f"Enlarge by this whole number, 1 to {MAX_SCALE}.")] = 1,
    device: Annotated[str | None, typer.Option(help="Index or part of the name, as `devices` lists them.")] = None,
    plan: Annotated[str, typer.Option(help="A plan of the package, or auto.")] = "auto",
) -> None:
    """Draw the picture of a model package, also enlarged: the network is evaluated between the pixels."""
    if not 1 <= scale <= MAX_SCALE:
        raise InputError(f"--scale {scale}: give a whole number from 1 to {MAX_SCALE}.")
    if out.suffix.lower() != ".png":
        raise InputError(f"Cannot write {out}: the picture is a PNG, so give a name that ends in .png.")
    check_outputs([out], [model])
    picture = render_picture(model, scale=scale, device=device, plan=plan)
    ensure_folder(out.parent)
    write_png(out, picture)
    typer.echo(f"wrote {out} ({picture.shape[1]}×{picture.shape[0]})", err=True)
