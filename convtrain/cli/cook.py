"""``convtrain cook``: the only place where the run phase's package reaches into the cook phase."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from convtrain.cli.paths import folder
from convtrain.errors import ConvtrainError
from convtrain.files.archive import ARCHIVE_NAME, STAMP_NAME
from convtrain.files.lock import LOCK_NAME
from convtrain.files.outputs import check_distinct


def cook(
    image: Annotated[
        Path | None, typer.Argument(metavar="[IMAGE]", help="The picture to learn; the packaged photograph if none.")
    ] = None,
    preset: Annotated[str, typer.Option(help="seed, small, cpu, or auto: cpu without a GPU, else seed.")] = "auto",
    size: Annotated[str | None, typer.Option(metavar="WxH", help="Resize the image to exactly this.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Another value for a constant, as nf=64 or lr=1e-3."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the first weights.")] = None,
    out: Annotated[Path, typer.Option(parser=folder, metavar="DIR", help="Folder for the training archive.")] = Path(
        "res_train"
    ),
    force: Annotated[bool, typer.Option("--force", help="Cook again even if nothing changed.")] = False,
) -> None:
    """Compile the shaders and pack them, the image and the first weights into one training archive."""
    from cook.build import CookOptions
    from cook.build import cook as build
    from cook.presets import AUTO, parse_settings, parse_size

    if image is not None:
        check_distinct([out / name for name in (ARCHIVE_NAME, STAMP_NAME, LOCK_NAME)], [image])
    options = CookOptions(
        image=image,
        preset=_preset_for_this_machine() if preset == AUTO else preset,
        size=None if size is None else parse_size(size),
        settings=parse_settings(set_ or []),
        seed=seed,
        out=out,
        force=force,
    )
    result = build(options, say=lambda message: typer.echo(message, err=True))
    if result.model is None or result.packed is None:
        typer.echo(f"{result.archive} is up to date (preset {options.preset}).")
        return
    model, packed = result.model, result.packed
    plans = ", ".join(f"{name} ({len(plan.passes)} passes)" for name, plan in packed.plans.items())
    typer.echo(
        f"wrote {result.archive}: preset {options.preset}, {model.width}x{model.height}, {model.weights} weights, "
        f"plans {plans}; {packed.compiled} of {packed.kernels} kernels compiled, {result.seconds:.1f} s"
    )


def _preset_for_this_machine() -> str:
    """``seed`` where a GPU can be used, ``cpu`` where there is only a CPU device or no Vulkan at all."""
    try:
        from convtrain.gpu.live.instance import list_devices

        kinds = {device.kind for device in list_devices()}
    except (ConvtrainError, ImportError, OSError):
        return "cpu"
    return "seed" if kinds - {"cpu"} else "cpu"
