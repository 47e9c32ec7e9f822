"""The page on adding a pass, followed to the letter."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from workspace import ROOT, TINY, environment, photograph

PAGE = ROOT / "docs" / "adding-a-pass.md"


def block(language: str) -> str:
    """The page's one code block in this language."""
    [text] = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return str(text)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the project with the page's edits made."""
    for name in ("convtrain", "cook", "slang"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "slang" / "grad_norm.slang").write_text(block("slang"))
    recipe = tmp_path / "cook" / "recipes" / "convsiren.py"
    before, after = "plan(model).build()", "with_gradient_norm(plan(model))"
    source = recipe.read_text()
    assert source.count(before) == 1
    recipe.write_text(source.replace(before, after) + "\n\n" + block("python"))
    return tmp_path


def test_the_example_works(checkout: Path) -> None:
    from PIL import Image

    Image.fromarray(photograph(13, 12)).save(checkout / "photo.png")
    env = environment() | {"PYTHONPATH": str(checkout)}
    settings = [f"--set={name}={value}" for name, value in TINY.items()]
    python = [sys.executable, "-m", "convtrain"]
    subprocess.run([*python, "cook", "photo.png", *settings], cwd=checkout, env=env, check=True, capture_output=True)
    script = (
        block("sh")
        .replace(". .venv/bin/activate\nconvtrain cook\n", "")
        .replace("convtrain", f"{sys.executable} -m convtrain")
    )
    script = script.replace("python -c", f"{sys.executable} -c")
    for plan in ("reference", "fused"):
        chosen = script.replace("--plan reference", f"--plan {plan}")
        subprocess.run(["sh", "-ec", chosen], cwd=checkout, env=env, check=True, capture_output=True)
        norm, gradient = np.load(checkout / "norm.npy"), np.load(checkout / "gradient.npy")
        assert norm == pytest.approx(np.linalg.norm(gradient), rel=1e-5)
        assert norm[0] > 0
