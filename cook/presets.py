"""Presets and ``--set KEY=VALUE``: from what a person typed to a model configuration."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from convtrain.errors import InputError
from cook.model import ModelConfig


@dataclass(frozen=True)
class Preset:
    """A starting point: model constants that differ from the defaults, and the longer side that images shrink to."""

    name: str
    constants: Mapping[str, int | float]
    longest: int | None = None


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("seed", {}),
        Preset("small", {"nf": 64}, longest=256),
        Preset("cpu", {"nf": 32}, longest=128),
    )
}
AUTO = "auto"

_FROM_IMAGE = ("height", "width", "den")
_TYPES = {item.name: int if item.type == "int" else float for item in fields(ModelConfig)}
SETTINGS = tuple(name for name in _TYPES if name not in _FROM_IMAGE)
"""The keys that ``--set`` takes."""


def find_preset(name: str) -> Preset:
    """The preset with this name. Raises InputError for an unknown one."""
    if name not in PRESETS:
        raise InputError(f"There is no preset '{name}': choose one of {', '.join([*PRESETS, AUTO])}.")
    return PRESETS[name]


def parse_settings(pairs: Iterable[str]) -> dict[str, int | float]:
    """``["nf=32", "lr=1e-3"]`` to typed values. Raises InputError for an unknown key or a value of the wrong type."""
    found: dict[str, int | float] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        key, text = key.strip(), text.strip()
        if not separator or not key or not text:
            raise InputError(f"--set takes KEY=VALUE, for example nf=32, and got '{pair}'.")
        if key in ("height", "width"):
            raise InputError(f"'{key}' follows from the image: use --size WxH.")
        if key not in SETTINGS:
            near = difflib.get_close_matches(key.lower(), SETTINGS, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"the keys are {', '.join(SETTINGS)}."
            raise InputError(f"There is no setting '{key}': {hint}")
        if key in found:
            raise InputError(f"--set {key} is given twice.")
        found[key] = _number(key, text)
    return found


def _number(key: str, text: str) -> int | float:
    kind = _TYPES[key]
    try:
        if "_" in text or not text.isascii():  # Python takes 8_0, and digits of every script
            raise ValueError
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise InputError(f"{key} must be {what}, and it is '{text[:40]}'.") from None


MAX_PIXELS = 2**27
"""Of a target. No model of even 8 features could be indexed with 32 bits beyond (see ``ModelConfig``)."""


def parse_size(text: str) -> tuple[int, int]:
    """``"640x480"`` to (width, height). Raises InputError."""
    match = re.fullmatch(r"\s*([0-9]{1,9})\s*[xX×]\s*([0-9]{1,9})\s*", text)
    if match is None or int(match[1]) < 1 or int(match[2]) < 1:
        raise InputError(f"--size takes WIDTHxHEIGHT in pixels, for example 512x512, and got '{text[:40]}'.")
    width, height = int(match[1]), int(match[2])
    if width * height > MAX_PIXELS:
        raise InputError(f"--size {text} is more than {MAX_PIXELS:,} pixels: choose a smaller one.")
    return width, height


def configure(preset: Preset, settings: Mapping[str, int | float], seed: int | None = None) -> ModelConfig:
    """The model of a preset with settings applied; image facts keep their defaults until the image is known.

    With ``ks`` or ``layers`` set and ``halo`` not, the halo is layers·radius + 2, as in the presets themselves.
    Raises InputError for a model that cannot exist.
    """
    chosen: dict[str, Any] = {**preset.constants, **settings}
    if seed is not None:
        if settings.get("seed", seed) != seed:
            raise InputError(f"The seed is given as {seed} and as {settings['seed']}: give it once.")
        chosen["seed"] = seed
    model = ModelConfig(**chosen)
    if {"ks", "layers"} & set(settings) and "halo" not in settings:
        model = ModelConfig(**chosen, halo=model.layers * model.radius + 2)
    return model
