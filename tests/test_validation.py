"""The Khronos validation layer, synchronisation validation on, has nothing to say about a whole life of a model."""

from __future__ import annotations

import subprocess
import sys

import pytest

from workspace import SMALL, SMALL_SIZE, Workspace, environment, photograph

VALIDATE = {"CONV_VALIDATE": "1"}
WITHOUT_BARRIERS = """
import sys
from convtrain.cli.app import main
from convtrain.gpu.live.commands import Barriers
Barriers.between = lambda self, commands: None
sys.exit(main(["run", "1", "--quiet"]))
"""


@pytest.fixture(scope="module", autouse=True)
def _layer_is_installed(tmp_path_factory: pytest.TempPathFactory) -> None:
    place = Workspace(tmp_path_factory.mktemp("layer"))
    with place.start("devices", env=VALIDATE) as process:
        _, err = process.communicate()
    if process.returncode and "validation layer is not installed" in err:
        pytest.skip("the Khronos validation layer is not installed")


def test_cook_run_resume_render_are_silent(workspace: Workspace, driver: dict[str, str]) -> None:
    workspace.env = {**driver, **VALIDATE}
    workspace.cook(photograph(*SMALL_SIZE), **SMALL)
    said = workspace.run(3, "--dump=GW=gw.npy").stderr
    said += workspace.run(2).stderr
    said += workspace.run(1, env={"CONV_TIME": "1"}).stderr
    assert said == ""
    rendered = workspace.convtrain("render", workspace.model, "-o", "drawn.png", "--scale", "2").stderr
    assert rendered.splitlines() == ["wrote drawn.png (34×28)"]


def test_a_missing_barrier_would_be_noticed(cooked: Workspace) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_BARRIERS],
        cwd=cooked.folder,
        env=environment(VALIDATE),
        capture_output=True,
        text=True,
    )
    assert "SYNC-HAZARD" in done.stderr
