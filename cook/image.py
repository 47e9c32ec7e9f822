"""Any picture file to the target: RGB float32 in [0, 1], upright, of the wanted size."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from convtrain.errors import InputError
from convtrain.files.regular import read_regular

PACKAGED = Path(__file__).parent / "data" / "astronaut.png"
"""The photograph used when no image is given (public domain, see the README beside it)."""

DEN_FLOOR = 1e-4
_PNG_END = b"IEND\xaeB`\x82"
_WIDE_MODES = ("I", "I;16", "I;16L", "I;16B", "I;16N")
COMPOSITED = "{} has transparency: it was composited on white."
_NO_PIXELS = ("EPS", "WMF", "BUFR", "GRIB", "HDF5", "MPEG")
"""What Pillow recognizes but cannot decode, or only by another program."""


@dataclass(frozen=True)
class Target:
    """The picture to learn: ``pixels`` float32 (H, W, 3) in [0, 1], and what was done to it, in words."""

    pixels: NDArray[np.float32]
    notes: tuple[str, ...] = ()

    @property
    def height(self) -> int:
        return int(self.pixels.shape[0])

    @property
    def width(self) -> int:
        return int(self.pixels.shape[1])


def read_file(path: Path) -> bytes:
    """The file's bytes. Raises InputError when there is none or it cannot be read."""
    try:
        return read_regular(path)
    except FileNotFoundError:
        raise InputError(f"There is no file {path}.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder: give an image file.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}. Give an image file.") from None


def display_name(path: Path) -> str:
    """The file's name as text that any encoding of Unicode can hold: bytes that are not UTF-8 become U+FFFD."""
    return os.fsencode(path.name).decode("utf-8", "replace")


def load_target(data: bytes, name: str, *, size: tuple[int, int] | None = None, longest: int | None = None) -> Target:
    """Decode an image file's contents.

    EXIF rotation is applied, transparency is composited on white, grey and CMYK become RGB; 16-bit greyscale keeps
    its precision. ``size`` (width, height) stretches to exactly that; otherwise a longer side above ``longest`` is
    shrunk to it, aspect kept. Resizing uses Pillow's LANCZOS filter. Raises InputError for what is not a whole image.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, on many pixels or odd metadata: what matters is an error below
        decoded, notes = _decode(data, name)
        image = _upright(decoded, name, notes)
    wanted = size or _fit(image.size, longest)
    wide = image.mode == "F"
    if image.size != wanted:
        why = "" if size else f", the preset's size; --size {image.width}x{image.height} keeps its own"
        notes.append(f"{name} was resized from {image.width}x{image.height} to {wanted[0]}x{wanted[1]} (Lanczos){why}.")
        image = image.resize(wanted, Image.Resampling.LANCZOS)
    if wide:
        grey = np.clip(np.asarray(image, np.float32), 0, 1)
        return Target(np.ascontiguousarray(np.repeat(grey[:, :, None], 3, axis=2)), tuple(notes))
    return Target(np.asarray(image, np.float32) / np.float32(255), tuple(notes))


def gradient_energy(pixels: NDArray[np.float32]) -> float:
    """``den`` of the loss: mean squared vertical difference plus mean squared horizontal one, at least 1e-4.

    ``pixels`` is (H, W, 3); an axis of length 1 contributes 0. Computed in float64.
    """
    wide = pixels.astype(np.float64)
    total = 0.0
    for axis in (0, 1):
        if wide.shape[axis] > 1:
            total += float(np.mean(np.diff(wide, axis=axis) ** 2))
    return max(total, DEN_FLOOR)


def _decode(data: bytes, name: str) -> tuple[Image.Image, list[str]]:
    """The picture, and what of the file is not in it."""
    try:
        image = Image.open(BytesIO(data))
    except Image.DecompressionBombError:
        raise InputError(f"{name} has too many pixels to be decoded safely: shrink it first.") from None
    except Exception:  # Pillow's readers raise many kinds on foreign data
        raise InputError(f"{name} is not an image that can be read (PNG, JPEG, TIFF, WebP, BMP, GIF, …).") from None
    if image.format in _NO_PIXELS:
        raise InputError(f"{name} is of kind {image.format}, which is not supported: convert it to PNG.")
    notes = []
    try:
        if (frames := getattr(image, "n_frames", 1)) > 1:
            notes.append(f"{name} holds {frames} pictures: the first was taken.")
        if ";16" in str(image.tile) and image.mode not in _WIDE_MODES:
            notes.append(f"{name} has 16 bits per sample: it was rounded to 8, as all but greyscale is.")
        image.load()
    except Exception as error:  # as above: OSError, SyntaxError, ValueError, struct.error, …
        reason = str(error).rstrip(".") or type(error).__name__
        raise InputError(f"{name} is damaged or cut short: {reason}.") from None
    if image.format == "PNG" and _PNG_END not in data:  # Pillow lets a missing end pass
        raise InputError(f"{name} is damaged or cut short: its last chunk is missing.")
    return image, notes


def _upright(image: Image.Image, name: str, notes: list[str]) -> Image.Image:
    """The image as it is meant to be seen, in mode RGB, or F (0 to 1) for wide greyscale. Adds to ``notes``."""
    try:
        turned = ImageOps.exif_transpose(image)
    except Exception:  # damaged EXIF data says nothing of the pixels
        turned = image
    if image.getexif().get(0x0112) in range(2, 9):
        notes.append(f"{name} was turned upright as its EXIF orientation says.")
    image = turned
    if image.mode in _WIDE_MODES or image.mode == "F":
        values = np.asarray(image).astype(np.float32)
        transparent = values == image.info.get("transparency")
        if image.mode != "F":
            values /= np.float32(65535)
        if not np.isfinite(values).all() or values.min() < 0 or values.max() > 1:
            raise InputError(f"{name} has sample values outside 0 to 65535 (or 0 to 1 for float): convert it first.")
        if transparent.any():
            notes.append(COMPOSITED.format(name))
        return Image.fromarray(np.where(transparent, np.float32(1), values))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        notes.append(COMPOSITED.format(name))
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    try:
        return image.convert("RGB")
    except ValueError:
        raise InputError(
            f"{name} has pixels of kind {image.mode}, which are not supported: convert it to RGB."
        ) from None


def _fit(size: tuple[int, int], longest: int | None) -> tuple[int, int]:
    longer = max(size)
    if longest is None or longer <= longest:
        return size
    width, height = (max(1, round(side * longest / longer)) for side in size)
    return width, height
