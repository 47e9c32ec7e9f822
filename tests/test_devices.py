"""``convtrain devices``, and what a person reads when Vulkan is not there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from convtrain.cli.devices import describe, render
from convtrain.gpu.switches import NO_SWITCHES, Switches
from device_zoo import GEMM_VARIANTS, H200, INTEL, LAVAPIPE, PLAIN, ZOO, make_plan
from toy_resources import make_archive
from workspace import Workspace

PLANS = {"reference": make_plan(GEMM_VARIANTS)}


@pytest.fixture
def archived(workspace: Workspace) -> Workspace:
    """A folder with an archive of two made-up plans."""
    workspace.archive.parent.mkdir()
    make_archive(workspace.archive.parent)
    return workspace


def test_every_device_of_the_machine_is_listed(workspace: Workspace, driver: dict[str, str]) -> None:
    found = json.loads(workspace.convtrain("devices", "--json", env=driver).stdout)
    assert [entry["index"] for entry in found] == list(range(len(found)))
    for entry in found:
        assert entry["name"]
        assert entry["plans"] == {}
        assert {item["name"] for item in entry["capabilities"]} >= {"scalar fp32", "cooperative matrices"}
    said = workspace.convtrain("devices", env=driver).stdout
    assert all(entry["name"] in said for entry in found)


def test_with_an_archive_every_pass_has_its_variant(archived: Workspace) -> None:
    for arguments in ((), ("--res", "res_train"), ("--res", archived.archive)):
        (entry, *_) = json.loads(archived.convtrain("devices", "--json", *arguments).stdout)
        plan = entry["plans"]["reference"]
        assert plan["usable"] is True
        assert [item["index"] for item in plan["passes"]] == list(range(len(plan["passes"])))
        assert all(item["variant"] for item in plan["passes"])
    assert "plan reference: yes" in archived.convtrain("devices").stdout


def test_a_damaged_archive_is_said_but_hides_no_device(archived: Workspace) -> None:
    archived.archive.write_bytes(b"damaged")
    done = archived.convtrain("devices")
    assert "listed without it" in done.stderr
    assert done.stdout
    archived.convtrain("devices", "--res", "res_train", code=2)


def test_a_missing_archive_matters_only_when_asked_for(workspace: Workspace) -> None:
    assert workspace.convtrain("devices").stderr == ""
    done = workspace.convtrain("devices", "--res", "nowhere", code=2)
    assert "nowhere" in done.stderr


@pytest.mark.parametrize("device", ZOO, ids=lambda device: device.name)
def test_descriptions_are_json_and_readable(device: object) -> None:
    entry = describe(device, PLANS, NO_SWITCHES)  # type: ignore[arg-type]
    assert json.loads(json.dumps(entry)) == json.loads(json.dumps(entry))
    assert render(entry).startswith(f"0: {entry['name']} (")


def test_the_reasons_against_better_variants_are_listed() -> None:
    said = render(describe(INTEL, PLANS, NO_SWITCHES))
    assert "passes: 1 scalar, 1 coopmat8x16x16-16" in said
    assert "second: coopmat8x16x16-16, not coopmat16x16x16-32: no cooperative matrix" in said
    assert "not coopmat" not in render(describe(H200, PLANS, NO_SWITCHES))
    assert "second: scalar, not coopmat" in render(describe(LAVAPIPE, PLANS, NO_SWITCHES))


def test_switches_count() -> None:
    said = render(describe(H200, PLANS, Switches(no_coopmat=True)))
    assert "second: scalar, not coopmat" in said
    assert "cooperative matrices     no" in said


def test_a_plan_that_does_not_fit_is_explained() -> None:
    plans = {"reference": make_plan(elements=1 << 30)}
    entry = describe(PLAIN, plans, NO_SWITCHES)
    assert entry["plans"]["reference"]["usable"] is False
    assert "plan reference: no. Plan reference needs 4,294,967,296 bytes" in render(entry)


def fake_vulkan(folder: Path, body: str) -> dict[str, str]:
    """An environment in which ``import vulkan`` executes ``body``."""
    package = folder / "fake"
    package.mkdir()
    (package / "vulkan.py").write_text(body)
    (package / "sitecustomize.py").write_text(f"import sys\nsys.path.insert(0, {str(package)!r})\n")
    return {"PYTHONPATH": os.pathsep.join((str(package), str(Path(__file__).resolve().parent.parent)))}


@pytest.mark.parametrize("arguments", [("devices",), ("run", "1")])
def test_without_a_loader_a_sentence_names_the_packages(
    archived: Workspace, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    env = fake_vulkan(tmp_path, "raise OSError('Cannot find Vulkan SDK version.')\n")
    done = archived.convtrain(*arguments, env=env, code=2)
    assert "libvulkan1" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("arguments", [("devices",), ("run", "1")])
def test_without_a_driver_a_sentence_names_the_package(archived: Workspace, arguments: tuple[str, ...]) -> None:
    nowhere = {"VK_DRIVER_FILES": "/nowhere.json", "VK_ICD_FILENAMES": "/nowhere.json"}
    done = archived.convtrain(*arguments, env=nowhere, code=2)
    assert "mesa-vulkan-drivers" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_unknown_device_is_a_sentence(archived: Workspace) -> None:
    for selector in ("7", "Voodoo"):
        done = archived.convtrain("run", "1", "--device", selector, code=2)
        assert f"no Vulkan device '{selector}'" in done.stderr
