"""The run phase stands alone: no Slang, no sources, nothing but the archive."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workspace import ROOT, Workspace, environment

FORBIDDEN = "raise ImportError('{name} must not be imported by the run phase')\n"


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """An environment where ``convtrain`` is a bare copy, and ``slangpy`` and ``cook`` cannot be imported."""
    site = tmp_path / "site"
    shutil.copytree(ROOT / "convtrain", site / "convtrain", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("slangpy", "cook"):
        (site / f"{name}.py").write_text(FORBIDDEN.format(name=name))
    return environment() | {"PYTHONPATH": str(site)}


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "2", "--quiet"],
        ["run", "0", "--quiet"],
        ["render", "res/model.res", "-o", "big.png", "--scale", "2"],
        ["info", "res_train/train.res"],
        ["export", "res/model.res", "--npz", "weights.npz"],
        ["devices"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_everything_but_cook_works_alone(arguments: list[str], cooked: Workspace, alone: dict[str, str]) -> None:
    if "res/model.res" in arguments:
        cooked.run(1)
    done = subprocess.run(
        [sys.executable, "-m", "convtrain", *arguments], cwd=cooked.folder, env=alone, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_cook_says_what_it_lacks(tmp_path: Path, alone: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "convtrain", "cook"], cwd=tmp_path, env=alone, capture_output=True, text=True
    )
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()


def test_the_sources_of_the_run_phase_never_name_slangpy() -> None:
    for path in (ROOT / "convtrain").rglob("*.py"):
        imports = [line for line in path.read_text().splitlines() if line.lstrip().startswith(("import ", "from "))]
        assert not [line for line in imports if "slangpy" in line], path
        if path != ROOT / "convtrain" / "cli" / "cook.py":
            assert not [line for line in imports if line.split()[1].split(".")[0] == "cook"], path
