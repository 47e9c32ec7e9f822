"""The wheel carries everything: both packages, the shaders, the photograph."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from workspace import ROOT


def test_the_wheel_is_complete(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    shaders = {f"cook/{path.relative_to(ROOT)}" for path in (ROOT / "slang").rglob("*.slang")}
    assert shaders
    assert shaders <= names
    assert {"convtrain/cli/app.py", "convtrain/py.typed", "cook/data/astronaut.png"} <= names
    assert not [name for name in names if name.startswith(("tests/", "bench/", "slang/"))]
