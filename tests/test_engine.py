"""The live engine on every driver that is installed: contents, execution, splitting, run-ahead, clean-up."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from convtrain.errors import InputError, RunError
from convtrain.gpu import plan as planner
from convtrain.gpu.live import instance, vk
from convtrain.gpu.live.engine import Engine
from convtrain.gpu.plan import plan_execution
from convtrain.gpu.snapshot import DeviceSnapshot, snapshot_from_json
from convtrain.gpu.submits import Pace
from convtrain.gpu.switches import Switches
from convtrain.graph.types import Access, Buffer, Port, to_json
from toy_gpu import COUNT, GROUPS, digest, read_blob, seed, toy_plan

if TYPE_CHECKING:
    from live_device import MakeEngine

pytest_plugins = ("live_device",)

ALL = (0, 1, 2)
X = np.arange(COUNT, dtype=np.float32)


def floats(engine: Engine, key: str) -> np.ndarray:
    return np.frombuffer(engine.read(key), np.float32)


def test_first_contents(make_engine: MakeEngine) -> None:
    engine = make_engine(toy_plan())
    assert engine.read("x") == seed()
    assert not floats(engine, "y").any()
    assert not floats(engine, "z").any()
    assert not engine.host("loss").any()
    assert engine.uniform(0)["factor"] == 2.0
    assert engine.uniform(0)["steps"] == 0


def test_run(make_engine: MakeEngine) -> None:
    engine = make_engine(toy_plan())
    engine.run(ALL)
    assert np.array_equal(floats(engine, "y"), 2 * X)
    assert np.array_equal(floats(engine, "z"), 2 * X)
    assert engine.host("loss").tolist() == [2 * X.sum(), 1]


def test_uniforms_are_read_at_every_run(make_engine: MakeEngine) -> None:
    engine = make_engine(toy_plan())
    controls = engine.uniform(0)
    for factor, steps in ((1.5, 7), (-3.0, 0)):
        controls["factor"], controls["steps"] = factor, steps
        engine.run((0,))
        assert np.array_equal(floats(engine, "y"), np.float32(factor) * X + steps)


def test_only_the_active_passes_run(make_engine: MakeEngine) -> None:
    engine = make_engine(toy_plan())
    engine.run((0, 2))
    assert np.array_equal(floats(engine, "y"), 2 * X)
    assert not floats(engine, "z").any()
    assert engine.host("loss").tolist() == [0, 1]


@pytest.mark.parametrize("repeat", [1, 2, 17])
def test_repeats(make_engine: MakeEngine, repeat: int) -> None:
    engine = make_engine(toy_plan())
    engine.run(ALL, repeat)
    assert np.array_equal(floats(engine, "z"), 2 * repeat * X)
    assert engine.host("loss").tolist() == [2 * repeat * X.sum(), repeat]


def test_work_can_be_in_flight_twice(make_engine: MakeEngine) -> None:
    engine = make_engine(toy_plan())
    engine.prepare(ALL)
    tickets = [engine.submit(ALL) for _ in range(5)]
    for ticket in reversed(tickets):
        engine.wait(ticket)
        engine.wait(ticket)
    assert engine.host("loss")[1] == 5
    assert np.array_equal(floats(engine, "z"), 10 * X)


def test_write_and_read_by_id_label_and_port(make_engine: MakeEngine) -> None:
    engine = make_engine(toy_plan())
    content = np.linspace(0, 1, COUNT, dtype=np.float32).tobytes()
    engine.write("z", content)
    assert engine.read("1-1") == engine.read("z") == engine.read("2-0") == content
    engine.write("2-3", np.float32([3, 4]).tobytes())
    assert engine.host("loss").tolist() == [3, 4]
    assert engine.read("loss") == np.float32([3, 4]).tobytes()
    engine.write("state", np.array([5.0], "<f4").tobytes() + np.array([9], "<u4").tobytes())
    assert engine.uniform(0)["factor"] == 5.0
    assert engine.uniform(0)["steps"] == 9
    assert len(engine.read("state")) == 8


def test_writes_of_a_wrong_size_or_name_are_refused(make_engine: MakeEngine) -> None:
    engine = make_engine(toy_plan())
    with pytest.raises(InputError, match="holds 4,000 bytes, and 4 were given"):
        engine.write("x", b"1234")
    for call in (lambda: engine.read("nothing"), lambda: engine.host("x"), lambda: engine.uniform(1)):
        with pytest.raises(KeyError):
            call()


def test_a_large_buffer_goes_through_staging_in_parts(make_engine: MakeEngine) -> None:
    plan = toy_plan()
    count = (20 << 20) // 4 + 3
    large = replace(plan, buffers=(*plan.buffers[:2], Buffer("1-1", "z", count), plan.buffers[3]))
    engine = make_engine(large)
    content = np.random.default_rng(0).random(count, np.float32)
    engine.write("z", content.tobytes())
    assert np.array_equal(floats(engine, "z"), content)
    engine.run(ALL)
    assert np.array_equal(floats(engine, "z")[:COUNT], content[:COUNT] + 2 * X)


@pytest.mark.parametrize("switch", ["", "no_host_import", "no_subgroup_size", "no_timestamps", "no_fp16"])
def test_the_same_with_features_switched_off(make_engine: MakeEngine, switch: str) -> None:
    engine = make_engine(toy_plan(), Switches(**{switch: True}) if switch else Switches())
    engine.uniform(0)["factor"] = 3.0
    engine.run(ALL, 2)
    assert engine.host("loss").tolist() == [6 * X.sum(), 2]


def test_host_memory_is_imported_where_the_device_says_so(make_engine: MakeEngine, device: DeviceSnapshot) -> None:
    arenas = make_engine(toy_plan())._arenas
    assert [arena.imported for arena in arenas] == [device.host_import_alignment is not None]
    assert not make_engine(toy_plan(), Switches(no_host_import=True))._arenas[0].imported


def small_pace(monkeypatch: pytest.MonkeyPatch, budget: float) -> None:
    """Make every device so slow on paper that sequences are cut at ``budget`` seconds."""
    pace = Pace(bandwidth=1e6, arithmetic=1e9, budget=budget)
    monkeypatch.setattr(planner, "PACES", dict.fromkeys(planner.PACES, pace))


def test_long_passes_are_dispatched_in_pieces(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pace(monkeypatch, 0.0011)
    engine = make_engine(toy_plan())  # 8 ms each, by these numbers
    assert engine.execution.split == {0, 1, 2}
    chunks = planner.sequence(engine.execution, ALL).chunks
    assert len(chunks) == 8 + 8 + 1
    assert sum(step.groups[0] for chunk in chunks for step in chunk.steps if step.index == 1) == GROUPS
    engine.run(ALL, 2)
    assert np.array_equal(floats(engine, "z"), 4 * X)
    assert engine.host("loss").tolist() == [4 * X.sum(), 2]


@pytest.mark.parametrize("groups", [(GROUPS, 1, 1), (1, GROUPS, 1), (1, 1, GROUPS), (2, GROUPS // 2, 1)])
def test_pieces_along_any_dimension(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, groups: tuple[int, int, int]
) -> None:
    small_pace(monkeypatch, 0.0011)
    plan = toy_plan()
    grid = replace(plan.passes[0].variants[0], spirv=digest("grid"), groups=groups)
    engine = make_engine(replace(plan, passes=(replace(plan.passes[0], variants=(grid,)), *plan.passes[1:])))
    engine.uniform(0)["steps"] = groups[0] | groups[1] << 8
    assert len({step.base for chunk in planner.sequence(engine.execution, (0,)).chunks for step in chunk.steps}) > 4
    engine.run((0,))
    assert np.array_equal(floats(engine, "y"), 2 * X)


def test_a_fast_device_gets_fewer_command_buffers(device: DeviceSnapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pace(monkeypatch, 1.0)
    execution = plan_execution(replace(device, kind="discrete"), toy_plan(10**9))
    with Engine(execution, read_blob) as engine:
        before = len(planner.sequence(execution, ALL).chunks)
        for _ in range(4):
            engine.run(ALL)
            assert [item.index for item in engine.measure(ALL)] == [0, 1, 2]
        assert len(engine._recorded[ALL, False].sequence.chunks) < before
        assert len(engine._recorded[ALL, True].sequence.chunks) < before
        assert np.array_equal(floats(engine, "z"), 16 * X)


def test_measure_runs_and_times_every_pass(make_engine: MakeEngine) -> None:
    engine = make_engine(toy_plan())
    for _ in range(2):
        timings = engine.measure(ALL)
    assert [item.index for item in timings] == [0, 1, 2]
    assert all(0 < item.nanoseconds < 10e9 for item in timings)
    assert engine.host("loss")[1] == 2


def test_measure_adds_up_the_pieces_of_a_pass(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pace(monkeypatch, 0.002)
    timings = make_engine(toy_plan()).measure(ALL)
    assert [item.index for item in timings] == [0, 1, 2]


def test_measure_without_timestamps_runs_all_the_same(make_engine: MakeEngine) -> None:
    engine = make_engine(toy_plan(), Switches(no_timestamps=True))
    assert engine.measure(ALL) == []
    assert engine.host("loss")[1] == 1


def test_two_engines_at_once_do_not_meet(make_engine: MakeEngine) -> None:
    one, two = make_engine(toy_plan()), make_engine(toy_plan())
    one.run(ALL)
    assert not two.host("loss").any()
    two.run(ALL, 2)
    assert one.host("loss")[1] == 1


def test_closing_twice_is_harmless(device: DeviceSnapshot) -> None:
    with Engine(plan_execution(device, toy_plan()), read_blob) as engine:
        engine.run(ALL)
    engine.close()
    gc.collect()


def test_runs_give_the_same_bytes(make_engine: MakeEngine) -> None:
    def once() -> bytes:
        engine = make_engine(toy_plan())
        engine.uniform(0)["factor"] = 0.1
        engine.run(ALL, 5)
        return engine.read("z") + engine.read("loss")

    assert once() == once()


@pytest.mark.parametrize("content", [b"not SPIR-V at all, no", b"", b"abc"])
def test_foreign_shader_bytes_are_refused(device: DeviceSnapshot, content: bytes) -> None:
    def damaged(sha: str) -> bytes:
        return content if sha == digest("add") else read_blob(sha)

    with pytest.raises(InputError, match="shader of pass 1 add is not SPIR-V"):
        Engine(plan_execution(device, toy_plan()), damaged)


def test_too_new_spirv_is_refused(device: DeviceSnapshot) -> None:
    def newer(sha: str) -> bytes:
        code = bytearray(read_blob(sha))
        if sha == digest("add"):
            code[5] = 1
            code[5:7] = b"\x09\x01"
        return bytes(code)

    with pytest.raises(InputError, match=r"SPIR-V 1\.9"):
        Engine(plan_execution(device, toy_plan()), newer)


def test_a_vanished_device_is_a_sentence(device: DeviceSnapshot) -> None:
    gone = replace(device, index=99)
    with pytest.raises(RunError, match="no longer present"):
        Engine(plan_execution(gone, toy_plan()), read_blob)


def test_a_lost_device_is_a_sentence_and_closes(device: DeviceSnapshot) -> None:
    with Engine(plan_execution(device, toy_plan()), read_blob) as engine:
        engine.run(ALL)
        engine._queue._wait = lambda *_: vk.VK_ERROR_DEVICE_LOST
        with pytest.raises(RunError, match="while waiting for the device: the device was lost"):
            engine.run(ALL)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("VK_ERROR_DEVICE_LOST", "the device was lost"),
        ("VK_ERROR_OUT_OF_DEVICE_MEMORY", "device memory is exhausted"),
        ("VK_ERROR_OUT_OF_HOST_MEMORY", "host memory is exhausted"),
        ("VK_ERROR_FORMAT_NOT_SUPPORTED", "VK_ERROR_FORMAT_NOT_SUPPORTED"),
    ],
)
def test_failures_are_words(name: str, words: str) -> None:
    with pytest.raises(RunError, match=f"The GPU failed while testing: {words}"):
        vk.check(getattr(vk, name), "testing")
    vk.check(vk.VK_SUCCESS, "testing")
    vk.check(vk.VK_TIMEOUT, "testing")


def test_exhausted_memory_is_a_sentence(device: DeviceSnapshot) -> None:
    """A device that promises more than it has: the driver's refusal becomes plain words."""
    limits = replace(device.limits, storage_range=1 << 50, buffer_size=1 << 50, allocation_size=1 << 50)
    heaps = tuple(replace(heap, size=1 << 50) for heap in device.heaps)
    plan = toy_plan()
    huge = replace(plan, buffers=(*plan.buffers[:2], Buffer("1-1", "z", 1 << 42), plan.buffers[3]))
    with pytest.raises(RunError, match="The GPU failed while allocating"):
        Engine(plan_execution(replace(device, limits=limits, heaps=heaps), huge), read_blob)


def test_many_passes_share_one_pipeline(make_engine: MakeEngine) -> None:
    plan = toy_plan()
    again = tuple(
        replace(
            plan.passes[1],
            index=index,
            ports=(Port(0, "y", plan.passes[1].ports[0].kind, Access.READ, "0-1"), plan.passes[1].ports[1]),
        )
        for index in range(3, 10)
    )
    engine = make_engine(replace(plan, passes=(*plan.passes, *again)))
    assert len({bound.pipeline for bound in engine._passes}) == 3
    engine.run(tuple(range(10)))
    assert np.array_equal(floats(engine, "z"), 16 * X)


def test_a_live_snapshot_is_coherent(device: DeviceSnapshot) -> None:
    limits, subgroup = device.limits, device.subgroup
    assert device.api_version >= (1, 1, 0)
    assert 1 <= subgroup.minimum <= subgroup.size <= subgroup.maximum
    assert "basic" in subgroup.operations
    assert limits.shared_bytes >= 16384
    assert limits.workgroup_invocations >= 128
    assert limits.storage_range >= 1 << 27
    assert limits.allocation_size >= 1 << 30
    for power in (limits.storage_alignment, limits.uniform_alignment, device.host_import_alignment or 1):
        assert power & (power - 1) == 0
    assert any(kind.device_local for kind in device.memory_types)
    assert len(bytes.fromhex(device.pipeline_cache_uuid)) == 16
    assert device.timestamp_bits == 0 or (36 <= device.timestamp_bits <= 64 and device.timestamp_period > 0)
    assert snapshot_from_json(json.loads(json.dumps(to_json(device)))) == device


def test_devices_are_chosen_by_index_and_name(device: DeviceSnapshot) -> None:
    assert instance.choose_device(str(device.index)) == device
    assert instance.choose_device(device.name[2:8].upper()) == device
    for selector in ("99", "no such device", "-1", "1.5"):
        with pytest.raises(InputError, match=f"no Vulkan device '{selector}'.*{device.index}: "):
            instance.choose_device(selector)
    for selector in ("", " "):
        with pytest.raises(InputError, match="is empty"):
            instance.choose_device(selector)
