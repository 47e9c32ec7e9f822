"""The whole cook: options and an image file to ``train.res``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from convtrain import __version__
from convtrain.errors import InputError
from convtrain.files.archive import ARCHIVE_NAME, STAMP_NAME
from convtrain.files.atomic import ensure_folder
from convtrain.files.checkpoint import CHECKPOINT_NAME, open_checkpoint
from convtrain.files.container import sha256, write_container
from convtrain.files.lock import folder_lock
from convtrain.graph.types import to_json
from cook import slang_api
from cook.cache import SpirvCache
from cook.check import check_plan
from cook.image import PACKAGED, display_name, gradient_energy, load_target, read_file
from cook.model import ModelConfig
from cook.pack import Packed, pack
from cook.presets import Preset, configure, find_preset
from cook.registry import CONVSIREN, build_graphs, find_recipe, left_out
from cook.seeds import draw_weights
from cook.sources import slang_root
from cook.stamp import inputs_digest, is_current, write_stamp

SPIRV_FOLDER = "spirv"


@dataclass(frozen=True)
class CookOptions:
    """What to cook: an image file (None: the packaged photograph), a preset, and what differs from it.

    ``size`` is (width, height) in pixels; ``settings`` are typed values by key (see ``cook.presets.parse_settings``).
    """

    image: Path | None = None
    preset: str = "seed"
    size: tuple[int, int] | None = None
    settings: Mapping[str, int | float] = field(default_factory=dict)
    seed: int | None = None
    out: Path = Path("res_train")
    force: bool = False
    recipe: str = CONVSIREN


@dataclass(frozen=True)
class CookResult:
    """What a cook did. ``packed`` and ``model`` are None when the archive was already up to date."""

    archive: Path
    seconds: float
    model: ModelConfig | None = None
    packed: Packed | None = None


def cook(options: CookOptions, say: Callable[[str], None] = lambda message: None) -> CookResult:
    """Make the training archive in ``options.out``, or find it up to date.

    The same options and image give the same bytes in every folder. ``say`` hears, in sentences, what is done to the
    image and what the compiler warns of. Raises InputError before anything is written for a bad option, image, shader
    or folder; a failure while writing leaves the old archive as it was.
    """
    started = time.perf_counter()
    preset = find_preset(options.preset)
    model = configure(preset, options.settings, options.seed)
    recipe = find_recipe(options.recipe)
    path = options.image or PACKAGED
    data, name = read_file(path), display_name(path)
    facts = {
        "model": model.config(),
        "preset": preset.name,
        "longest": preset.longest,
        "size": options.size,
        "image": name,
        "recipe": options.recipe,
    }
    inputs = inputs_digest(facts, data, slang_root())
    archive, stamp = options.out / ARCHIVE_NAME, options.out / STAMP_NAME
    if not options.force and is_current(stamp, archive, inputs):
        return CookResult(archive, time.perf_counter() - started)

    target = load_target(data, name, size=options.size, longest=preset.longest)
    for note in target.notes:
        say(note)
    model = replace(model, height=target.height, width=target.width, den=gradient_energy(target.pixels))
    model.require_indexable()
    graphs = build_graphs(recipe, model)
    ensure_folder(options.out)
    with folder_lock(options.out):
        seeds = {"weights": draw_weights(model).tobytes(), "target": target.pixels.tobytes()}
        names = {name: sha256(content) for name, content in seeds.items()}
        packed = pack(
            graphs,
            packs={"model": model.pack()},
            roots=[slang_root()],
            cache=SpirvCache(options.out / SPIRV_FOLDER),
            seeds=names,
        )
        for warning in packed.warnings:
            say(warning)
        for plan in packed.plans.values():
            check_plan(plan, {names[name]: len(content) for name, content in seeds.items()})
        manifest = _manifest(model, preset, options.recipe, name, data, names, packed)
        blobs = {**packed.blobs, **{names[name]: content for name, content in seeds.items()}}
        # Seeds are read through the memory map and uploaded as they lie.
        identity = write_container(archive, "training", manifest, blobs, raw=names.values())
        write_stamp(stamp, inputs, identity)
        if not _fits(options.out / CHECKPOINT_NAME, identity):
            say(
                f"{options.out / CHECKPOINT_NAME} belongs to another archive: `convtrain run --fresh` starts over "
                "and replaces it; keep a copy to continue with that archive later."
            )
    return CookResult(archive, time.perf_counter() - started, model, packed)


def _fits(checkpoint: Path, identity: str) -> bool:
    """Whether nothing is to be said: no checkpoint, a damaged one (run says so), or one of this archive."""
    if not checkpoint.exists():
        return True
    try:
        with open_checkpoint(checkpoint) as found:
            return found.archive == identity
    except InputError:
        return True


def _manifest(
    model: ModelConfig,
    preset: Preset,
    recipe: str,
    name: str,
    image: bytes,
    seeds: Mapping[str, str],
    packed: Packed,
) -> dict[str, Any]:
    return {
        "config": {
            **model.config(),
            "preset": preset.name,
            "recipe": recipe,
            "image": {"name": name, "sha256": sha256(image)},
        },
        "compiler": slang_api.build_tag(),
        "convtrain": __version__,
        "weights": {
            "count": model.weights,
            "slots": [{"name": slot.name, "offset": slot.offset, "shape": list(slot.shape)} for slot in model.slots()],
        },
        "seeds": dict(seeds),
        "plans": {plan: to_json(content) for plan, content in packed.plans.items()},
        "left_out": dict(left_out(recipe, model)),
    }
