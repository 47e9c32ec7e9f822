"""Snapshots are plain data, switches take features away, and capabilities are said in words."""

from __future__ import annotations

import json

import pytest

from convtrain.gpu.capabilities import capabilities
from convtrain.gpu.snapshot import DeviceSnapshot, snapshot_from_json
from convtrain.gpu.switches import NO_SWITCHES, Switches
from convtrain.graph.types import to_json
from device_zoo import H200, INTEL, LAVAPIPE, PLAIN, RADV, SWIFTSHADER, ZOO

SWITCH_NAMES = (
    "COOPMAT",
    "FP16",
    "SUBGROUP_SIZE",
    "HOST_IMPORT",
    "PIPELINE_CACHE",
    "TIMESTAMPS",
)


@pytest.mark.parametrize("device", ZOO, ids=lambda device: device.name)
def test_json_and_back(device: DeviceSnapshot) -> None:
    assert snapshot_from_json(json.loads(json.dumps(to_json(device)))) == device


def test_an_empty_environment_switches_nothing_off() -> None:
    assert Switches.from_environment({}) == NO_SWITCHES
    for device in ZOO:
        assert NO_SWITCHES.apply(device) == device


@pytest.mark.parametrize("name", SWITCH_NAMES)
@pytest.mark.parametrize(("value", "on"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_a_switch_is_on_unless_empty_or_zero(name: str, value: str, on: bool) -> None:
    switches = Switches.from_environment({f"CONV_NO_{name}": value})
    assert getattr(switches, f"no_{name.lower()}") is on


def test_plan_and_validation_come_from_the_environment() -> None:
    switches = Switches.from_environment({"CONV_PLAN": "fused", "CONV_VALIDATE": "1"})
    assert (switches.plan, switches.validate) == ("fused", True)
    assert Switches.from_environment({"CONV_PLAN": ""}).plan is None


def test_each_switch_removes_its_feature_only() -> None:
    assert Switches(no_coopmat=True).apply(H200).matrices == ()
    assert Switches(no_coopmat=True).apply(H200).float16
    plain = Switches(no_fp16=True).apply(H200)
    assert (plain.float16, plain.storage_16bit, plain.matrices) == (False, False, ())
    fixed = Switches(no_subgroup_size=True).apply(RADV).subgroup
    assert (fixed.size_control, fixed.full_subgroups, fixed.size) == (False, False, 64)
    assert Switches(no_host_import=True).apply(H200).host_import_alignment is None
    assert Switches(no_timestamps=True).apply(H200).timestamp_bits == 0
    assert Switches(no_pipeline_cache=True).apply(H200) == H200


def test_switches_are_idempotent() -> None:
    every = Switches(*[True] * 6)
    for device in ZOO:
        assert every.apply(every.apply(device)) == every.apply(device)


@pytest.mark.parametrize(
    ("device", "present"),
    [
        (H200, {"scalar fp32", "fp16 storage", "required subgroup size", "cooperative matrices"}),
        (RADV, {"scalar fp32", "fp16 storage", "required subgroup size", "cooperative matrices"}),
        (INTEL, {"scalar fp32", "fp16 storage", "required subgroup size", "cooperative matrices"}),
        (LAVAPIPE, {"scalar fp32", "fp16 storage", "required subgroup size"}),
        (SWIFTSHADER, {"scalar fp32", "required subgroup size"}),
        (PLAIN, {"scalar fp32"}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_capability_classes(device: DeviceSnapshot, present: set[str]) -> None:
    classes = [item for item in capabilities(device) if item.name not in ("imported host memory", "GPU timestamps")]
    assert {item.name for item in classes if item.present} == present
    assert all(item.detail for item in classes)


def test_capabilities_say_why_not() -> None:
    details = {item.name: item.detail for item in capabilities(PLAIN)}
    assert details["fp16 storage"] == "no fp16 arithmetic and no 16-bit storage buffers"
    assert "no control" in details["required subgroup size"]
    assert "mapped" in details["imported host memory"]
    assert "none" in details["GPU timestamps"]
    assert "16x8x16 f16" in {item.name: item.detail for item in capabilities(H200)}["cooperative matrices"]
