"""The fixtures of tests that execute on a device; a test module names this one in ``pytest_plugins``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from conftest import DRIVERS
from convtrain.errors import InputError
from convtrain.gpu.live import instance
from convtrain.gpu.live.engine import Engine
from convtrain.gpu.plan import plan_execution
from convtrain.gpu.snapshot import DeviceSnapshot
from convtrain.gpu.switches import NO_SWITCHES, Switches
from convtrain.graph.types import Plan
from toy_gpu import read_blob

MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="module", params=list(DRIVERS))
def device(request: pytest.FixtureRequest) -> Iterator[DeviceSnapshot]:
    """Each driver's device in turn, with Vulkan instances of its own in this process."""
    kept = dict(instance._shared)
    instance._shared.clear()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in DRIVERS[request.param].items():
            patch.setenv(name, value)
        yield instance.choose_device()
        instance.close_shared()
    instance._shared.update(kept)


@pytest.fixture
def make_engine(device: DeviceSnapshot) -> Iterator[MakeEngine]:
    """Makes engines for toy plans on the device and closes them after the test."""
    made: list[Engine] = []

    def make(plan: Plan, switches: Switches = NO_SWITCHES, **options: object) -> Engine:
        made.append(Engine(plan_execution(device, plan, switches), read_blob, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def listening(device: DeviceSnapshot) -> list[str]:
    """The messages of the validation layer in this process; skips where the layer is not installed."""
    try:
        collector = instance.shared_instance(True).messages
    except InputError as error:
        pytest.skip(str(error))
    assert collector is not None
    return collector.collected


@pytest.fixture
def validated(listening: list[str]) -> Iterator[Switches]:
    """Switches that turn the validation layer on; during the test it must have been silent."""
    before = len(listening)
    yield Switches(validate=True)
    assert listening[before:] == []
