"""Where the Slang sources are."""

from __future__ import annotations

from pathlib import Path

from convtrain.errors import InputError

_HERE = Path(__file__).resolve().parent


def slang_root() -> Path:
    """The folder of the Slang sources: inside an installed package, beside it in a checkout. Raises InputError."""
    for folder in (_HERE / "slang", _HERE.parent / "slang"):
        if folder.is_dir():
            return folder
    raise InputError(f"The Slang sources are missing beside {_HERE}: install convtrain again.")
