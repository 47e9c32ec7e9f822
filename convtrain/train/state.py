"""The training state on a device: exactly the plan's ``dump`` set, read and written by one rule.

A state item is a buffer or a uniform block with ``dump`` set, known by its label. Plans of one archive
share labels and layouts, so a checkpoint of one plan continues in another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from convtrain.files.container import Data
from convtrain.gpu.live.engine import Engine
from convtrain.graph.types import Plan
from convtrain.train.schedule import STATE_DTYPE


def host_state(engine: Engine, plan: Plan) -> Any | None:
    """The state block as a structured record in mapped memory, or None where the device keeps and advances it."""
    for item in plan.passes:
        if item.state_label == plan.roles.state:
            return engine.uniform(item.index)
    return None


def device_state(engine: Engine, plan: Plan) -> Any:
    """A copy of the state block that the device keeps."""
    return np.frombuffer(engine.read(plan.roles.state), STATE_DTYPE, count=1)[0]


def read_state(engine: Engine, plan: Plan) -> dict[str, bytes]:
    """Bytes of every state item, by label."""
    state = {buffer.label: engine.read(buffer.id) for buffer in plan.buffers if buffer.dump}
    for item in plan.passes:
        if item.state_label is not None:
            state[item.state_label] = engine.uniform(item.index).tobytes()
    return state


def write_state(engine: Engine, plan: Plan, state: Mapping[str, Data]) -> None:
    """Put back what :func:`read_state` gave, or what a checkpoint restored. ``state`` holds every item, in its size."""
    for buffer in plan.buffers:
        if buffer.dump:
            engine.write(buffer.id, state[buffer.label])
    for item in plan.passes:
        if item.state_label is not None:
            block = engine.uniform(item.index)
            block[...] = np.frombuffer(state[item.state_label], block.dtype)[0]
