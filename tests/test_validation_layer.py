"""The Khronos validation layer, synchronisation validation included, is silent on the engine, and not deaf."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from convtrain.errors import InputError
from convtrain.gpu import plan as planner
from convtrain.gpu.live import instance, validation, vk
from convtrain.gpu.live.device import Device
from convtrain.gpu.live.engine import Engine
from convtrain.gpu.plan import plan_execution
from convtrain.gpu.snapshot import DeviceSnapshot
from convtrain.gpu.submits import Pace
from convtrain.gpu.switches import Switches
from convtrain.graph.types import STORE, Access, Plan, Requirements
from toy_gpu import COUNT, digest, read_blob, toy_plan

if TYPE_CHECKING:
    from live_device import MakeEngine

pytest_plugins = ("live_device",)

ALL = (0, 1, 2)
VALIDATE = Switches(validate=True)


def exercise(engine: Engine) -> None:
    """Everything that an engine does."""
    engine.write("z", np.ones(COUNT, np.float32).tobytes())
    engine.run(ALL)
    engine.run(ALL, 3)
    for ticket in [engine.submit(ALL), engine.submit((0, 2)), engine.submit(ALL, 2)]:
        engine.wait(ticket)
    engine.measure(ALL)
    engine.measure(ALL)
    engine.write("state", engine.read("state"))
    assert engine.host("loss")[1] == 10
    assert engine.read("z")


def slow_on_paper(monkeypatch: pytest.MonkeyPatch, budget: float) -> None:
    pace = Pace(bandwidth=1e6, arithmetic=1e9, budget=budget)
    monkeypatch.setattr(planner, "PACES", dict.fromkeys(planner.PACES, pace))


@pytest.mark.parametrize("switch", ["", "no_host_import", "no_timestamps"])
def test_silence(validated: Switches, make_engine: MakeEngine, tmp_path: Path, switch: str) -> None:
    switches = replace(validated, **{switch: True}) if switch else validated
    engine = make_engine(toy_plan(), switches, cache_dir=tmp_path)
    exercise(engine)
    engine.close()


def test_silence_with_a_warm_cache_and_split_dispatches(
    validated: Switches, make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_on_paper(monkeypatch, 0.002)
    for _ in range(2):
        engine = make_engine(toy_plan(), validated, cache_dir=tmp_path)
        assert engine.execution.split
        exercise(engine)
        engine.close()


def test_silence_with_fewer_command_buffers(
    validated: Switches, device: DeviceSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_on_paper(monkeypatch, 1.0)
    execution = plan_execution(replace(device, kind="discrete"), toy_plan(10**8), validated)
    with Engine(execution, read_blob) as engine:
        for _ in range(3):
            engine.submit(ALL)
            engine.run(ALL)


def test_a_required_subgroup_size(validated: Switches, make_engine: MakeEngine, device: DeviceSnapshot) -> None:
    needs = Requirements(subgroup_size=device.subgroup.size, subgroup_ops=("basic",))
    plan = toy_plan()
    passes = tuple(replace(p, variants=(replace(p.variants[0], requires=needs), *p.variants)) for p in plan.passes)
    for switches in (validated, replace(validated, no_subgroup_size=True)):
        engine = make_engine(replace(plan, passes=passes), switches)
        assert not any(choice.rejected for choice in engine.execution.choices)
        exercise(engine)
        engine.close()


def test_half_storage_where_the_device_has_it(
    validated: Switches, make_engine: MakeEngine, device: DeviceSnapshot
) -> None:
    plan = toy_plan()
    scale = plan.passes[0]
    needs = Requirements(float16=True, storage_16bit=True, capabilities=("Shader", "Float16"))
    half = replace(scale.variants[0], name="half", spirv=digest("half"), requires=needs, storage="f16")
    stored = replace(plan.buffer("y"), dtype=STORE)
    mixed = replace(
        plan,
        storages=("f16", "f32"),
        passes=(replace(scale, variants=(half, *scale.variants)), *plan.passes[1:]),
        buffers=(plan.buffers[0], stored, *plan.buffers[2:]),
    )
    engine = make_engine(mixed, validated)
    engine.run((0,))
    capable = device.float16 and device.storage_16bit
    dtype = np.float16 if capable else np.float32
    assert (engine.execution.choices[0].variant.name == "half") is capable
    assert np.array_equal(np.frombuffer(engine.read("y"), dtype), 2 * np.arange(COUNT).astype(dtype))
    engine.close()


@pytest.mark.parametrize("name", ["x", "scale", "add"])
def test_a_failed_construction_leaves_nothing_behind(validated: Switches, device: DeviceSnapshot, name: str) -> None:
    def failing(sha: str) -> bytes:
        if sha == digest(name):
            raise InputError("a damaged blob")
        return read_blob(sha)

    with pytest.raises(InputError, match="a damaged blob"):
        Engine(plan_execution(device, toy_plan(), validated), failing)


def test_an_exception_in_between_leaves_nothing_behind(validated: Switches, device: DeviceSnapshot) -> None:
    def interrupted() -> None:
        with Engine(plan_execution(device, toy_plan(), validated), read_blob) as engine:
            engine.submit(ALL)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()


def lying(plan: Plan) -> Plan:
    """The plan with one false declaration: ``scale`` claims to read the buffer that it writes, so no barrier stands."""
    first = plan.passes[0]
    false = replace(first, ports=(first.ports[0], replace(first.ports[1], access=Access.READ)))
    return replace(plan, passes=(false, *plan.passes[1:]))


@pytest.mark.usefixtures("listening")
def test_a_missing_barrier_is_noticed(make_engine: MakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine(lying(toy_plan()), VALIDATE)
    before = len(engine.validation_messages)
    with caplog.at_level(logging.ERROR):
        engine.run(ALL)
    found = engine.validation_messages[before:]
    assert any("SYNC-HAZARD-READ-AFTER-WRITE" in message for message in found)
    assert "SYNC-HAZARD-READ-AFTER-WRITE" in caplog.text


def test_a_leak_is_noticed(listening: list[str], device: DeviceSnapshot) -> None:
    leaky = Device(instance.shared_instance(True), device, frozenset())
    leaky.own("VkFence", vk.Structs().new("VkFenceCreateInfo"), doing="leaking")
    leaky.resources.pop_all()
    instance.shared_instance(True).open_devices.discard(leaky)
    before = len(listening)
    vk.lib.vkDestroyDevice(leaky.handle, vk.ffi.NULL)
    assert any("has not been destroyed" in message for message in listening[before:])


@pytest.mark.usefixtures("listening")
def test_a_device_left_open_is_closed_with_its_instance(device: DeviceSnapshot) -> None:
    own = instance.Instance(validate=True)
    left = Device(own, device, frozenset())
    left.own("VkFence", vk.Structs().new("VkFenceCreateInfo"), doing="testing")
    own.close()
    assert own.messages is not None
    assert own.messages.collected == []
    assert own.open_devices == set()
    left.close()


def test_without_the_layer_a_sentence_says_what_to_install() -> None:
    with pytest.raises(InputError, match="apt install vulkan-validationlayers"):
        validation.require_layer({"VK_LAYER_MESA_overlay"})


def test_no_messages_without_validation(make_engine: MakeEngine) -> None:
    assert make_engine(toy_plan()).validation_messages == []
