"""Named tensors as ``.npz`` and ``.safetensors``: the same tensors give the same bytes."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

Tensors = Mapping[str, NDArray[np.float32]]


def write_npz(file: BinaryIO, tensors: Tensors) -> None:
    """NumPy's format: an uncompressed zip of ``.npy`` files (NumPy's own writer takes no tensor called "file")."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as pack:
        for name, tensor in tensors.items():
            # ZipInfo's own date is fixed, 1980-01-01.
            with pack.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(tensor, "<f4", order="C"), allow_pickle=False)


def write_safetensors(file: BinaryIO, tensors: Tensors) -> None:
    """The safetensors format: header length u64, JSON header padded with spaces to 8 bytes, then the data.

    Source: https://huggingface.co/docs/safetensors ("Format").
    """
    header, offset = {}, 0
    for name, tensor in tensors.items():
        end = offset + 4 * tensor.size
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for tensor in tensors.values():
        file.write(np.asarray(tensor, "<f4", order="C").tobytes())
