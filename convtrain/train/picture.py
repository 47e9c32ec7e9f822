"""Write a picture as an 8-bit PNG, whole or not at all."""

from __future__ import annotations

import io
import zlib
from pathlib import Path

from PIL import Image

from convtrain.files.atomic import write_bytes
from convtrain.train.metrics import Picture, to_u8

_SEARCH = zlib.Z_RLE
"""How deflate looks for what repeats. In filtered rows of a drawn picture only runs do: as small as with the whole
search, in a quarter of the time."""


def write_png(path: Path, picture: Picture) -> None:
    """Store an (H, W, 3) picture with values in [0, 1], clamped and rounded to 8 bits.

    Raises InputError or RunError when the file cannot be written.
    """
    memory = io.BytesIO()
    Image.fromarray(to_u8(picture), "RGB").save(memory, "PNG", compress_type=_SEARCH)
    write_bytes(path, memory.getvalue())
