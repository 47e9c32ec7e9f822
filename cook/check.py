"""What ``run`` would refuse, or trip over after the last epoch, refused while a recipe is cooked."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Mapping

from convtrain.errors import InputError
from convtrain.files.checkpoint import state_entries
from convtrain.files.inference import inference_plan
from convtrain.files.manifest import misfit
from convtrain.files.plans import UNIFORM_TYPES, flaw
from convtrain.graph.types import STORE, Buffer, Pass, Plan


def check_plan(plan: Plan, seeds: Mapping[str, int]) -> None:
    """Refuse a plan that cannot be run to its end. ``seeds`` has the bytes of every seed by its SHA-256.

    Raises InputError, which names pass or buffer.
    """
    for item in plan.passes:
        _demand(plan, f"pass {item.index} {item.name}", misfit(item) or _uniform_flaw(item))
    for buffer in plan.buffers:
        _demand(plan, f"buffer {buffer.label}", misfit(buffer) or _buffer_flaw(buffer, seeds))
    problem = misfit(plan) or flaw(plan) or _label_flaw(plan)
    _demand(plan, "", problem)
    try:
        state_entries(plan)
        inference_plan(plan, "")
    except ValueError as error:
        raise InputError(f"Plan {plan.name} cannot be trained to its end: {error}.") from error


def _demand(plan: Plan, what: str, problem: str | None) -> None:
    if problem:
        raise InputError(f"Plan {plan.name}{what and ', '}{what}: {problem}.")


def _uniform_flaw(item: Pass) -> str | None:
    uniform = item.uniform
    if uniform is None:
        return None
    for field in uniform.fields:
        value = uniform.initial.get(field.name, 0)
        try:
            struct.pack(UNIFORM_TYPES[field.dtype], value)
        except (struct.error, OverflowError):
            return f"the first value {value} does not fit its field {field.name} ({field.dtype})"
        if not math.isfinite(value):
            return f"the first value of its field {field.name} is not a finite number"
    return None


def _buffer_flaw(buffer: Buffer, seeds: Mapping[str, int]) -> str | None:
    if buffer.shape and math.prod(buffer.shape) != buffer.elements:
        return f"it has {buffer.elements} elements, and the shape {buffer.shape}"
    if buffer.seed is None:
        return None
    if buffer.dtype == STORE:
        return "a seed needs an element type of its own"
    size = seeds[buffer.seed]
    if buffer.nbytes("") != size:
        return f"its seed has {size} bytes, and its {buffer.elements} elements have {buffer.nbytes('')}"
    return None


def _label_flaw(plan: Plan) -> str | None:
    labels = Counter(buffer.label for buffer in plan.buffers)
    labels.update(item.uniform.label for item in plan.passes if item.uniform and item.uniform.label)
    twice = sorted(label for label, count in labels.items() if count > 1)
    if twice:
        return f"two buffers or uniform blocks are called {', '.join(twice)}"
    if plan.roles.state not in labels:
        return f"nothing is called {plan.roles.state}, as the role of the state says"
    return None
