"""The training state on a device: exactly the plan's ``dump`` set, read and written by one rule.

A state item is a buffer or a uniform block with ``dump`` set, known by its label. Plans of one archive
share labels and layouts, so a checkpoint of one plan continues in another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convtrain.gpu.live.engine import Engine
from convtrain.graph.types import Plan
from convtrain.train.schedule import STATE_FIELDS

STATE_BYTES = 4 * len(STATE_FIELDS)


def state_block(engine: Engine, plan: Plan) -> Any:
    """The host state as a structured record in mapped memory (fields of ``STATE_FIELDS`` first)."""
    for item in plan.passes:
        if item.uniform is not None and item.uniform.dump and item.uniform.label == plan.roles.state:
            return engine.uniform(item.index)
    raise LookupError(f"plan {plan.name} has no uniform block called {plan.roles.state}")


def read_state(engine: Engine, plan: Plan) -> dict[str, bytes]:
    """Bytes of every state item, by label."""
    state = {buffer.label: engine.read(buffer.id) for buffer in plan.buffers if buffer.dump}
    for item in plan.passes:
        if item.uniform is not None and item.uniform.dump:
            state[item.uniform.label] = engine.uniform(item.index).tobytes()
    return state


def write_state(engine: Engine, plan: Plan, state: Mapping[str, bytes]) -> None:
    """Put back what :func:`read_state` gave. Raises KeyError for a missing item, ValueError for one of another size."""
    for buffer in plan.buffers:
        if buffer.dump:
            engine.write(buffer.id, state[buffer.label])
    for item in plan.passes:
        if item.uniform is not None and item.uniform.dump:
            view = engine.uniform(item.index)
            block = view.view("u1").reshape(-1)
            saved = memoryview(state[item.uniform.label])
            if len(saved) != len(block):
                raise ValueError(f"state {item.uniform.label}: {len(saved)} bytes, expected {len(block)}")
            block[:] = memoryview(saved)
