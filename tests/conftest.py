"""Fixtures of the product tests: folders to cook and run in, and the Vulkan drivers to do it on."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from workspace import TINY, Workspace, photograph

SWIFTSHADER = "/usr/lib*/chromium*/vk_swiftshader_icd.json"


def _drivers() -> dict[str, dict[str, str]]:
    """Environment variables by driver: the machine's own choice, and SwiftShader where it is installed."""
    found: dict[str, dict[str, str]] = {"default": {}}
    manifests = [os.environ.get("SWIFTSHADER_ICD", ""), *sorted(glob.glob(SWIFTSHADER))]
    for manifest in filter(os.path.exists, manifests):
        found["swiftshader"] = {"VK_DRIVER_FILES": manifest, "VK_ICD_FILENAMES": manifest}
        break
    return found


DRIVERS = _drivers()


@pytest.fixture(scope="session", params=list(DRIVERS))
def driver(request: pytest.FixtureRequest) -> dict[str, str]:
    """Environment variables that select each driver in turn."""
    return DRIVERS[request.param]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """An empty folder on the default driver."""
    return Workspace(tmp_path)


@pytest.fixture(scope="session")
def tiny_archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A cooked archive of the tiny model on a 13×12 picture."""
    place = Workspace(tmp_path_factory.mktemp("cooked"))
    place.cook(photograph(13, 12), **TINY)
    return place.archive.read_bytes()


@pytest.fixture
def cooked(tmp_path: Path, tiny_archive: bytes) -> Workspace:
    """A folder of its own with the tiny model cooked."""
    place = Workspace(tmp_path)
    place.receive(tiny_archive)
    return place


@pytest.fixture
def make_cooked(tmp_path: Path, tiny_archive: bytes) -> Callable[[str], Workspace]:
    """Makes named folders with the same tiny model cooked."""

    def make(name: str) -> Workspace:
        place = Workspace(tmp_path / name)
        place.folder.mkdir()
        place.receive(tiny_archive)
        return place

    return make
