"""Folders on the command line."""

from __future__ import annotations

from pathlib import Path

import typer


def folder(text: str | Path) -> Path:
    """A folder's name, which an unset variable in a script is not: it would mean the current folder."""
    if text == "":
        raise typer.BadParameter("the name is empty; the current folder is '.'")
    return Path(text)
