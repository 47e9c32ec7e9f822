"""Plans inside a container: reading, checking, and which blobs they need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from convtrain.files.container import Container
from convtrain.files.manifest import entry, fits, unusable
from convtrain.graph.parse import plan_from_json
from convtrain.graph.types import ELEMENT_BYTES, STORAGES, STORE, Plan, Uniform

UNIFORM_TYPES = {"f32": "<f", "u32": "<I", "i32": "<i"}
"""The scalar types of uniform fields, with their struct format: 4 bytes each, little-endian."""


def read_plans(container: Container) -> dict[str, Plan]:
    """Every plan of the manifest by name, in the order in which it was written.

    Raises InputError for a plan that does not parse or does not add up (see :func:`flaw`).
    """
    plans: dict[str, Plan] = {}
    for name, data in entry(container, "plans", dict[str, Any]).items():
        try:
            plan = plan_from_json(data)
            problem = flaw(plan)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            raise unusable(container, f"has a plan {name!r} that does not parse") from None
        if problem or plan.name != name:
            raise unusable(container, f"has a plan {name!r} that is wrong: {problem or 'it has another name inside'}")
        plans[name] = plan
    if not plans:
        raise unusable(container, "has no plan")
    return plans


def check_blobs(container: Container, plans: dict[str, Plan]) -> None:
    """Raise InputError when a plan needs a blob that the container does not have."""
    for name, plan in plans.items():
        missing = set(blobs_of(plan)) - set(container.blobs)
        if missing:
            raise unusable(container, f"has a plan {name!r} with missing blobs ({min(missing)[:12]}…)")


def blobs_of(plan: Plan) -> Iterator[str]:
    """The SHA-256 of every blob that the plan refers to: SPIR-V of all variants, and seeds."""
    for item in plan.passes:
        for variant in item.variants:
            yield variant.spirv
    for buffer in plan.buffers:
        if buffer.seed is not None:
            yield buffer.seed


def flaw(plan: Plan) -> str | None:
    """What is wrong with the plan's types or references, None for a sound one. An empty role means "not there"."""
    if not fits(plan, Plan):
        return "a value in it has the wrong type"
    if not plan.storages or not {*plan.storages} <= {*STORAGES}:
        return "it names no storage, or an unknown one"
    buffers = {buffer.id for buffer in plan.buffers}
    if len(buffers) != len(plan.buffers) or len({buffer.label for buffer in plan.buffers}) != len(buffers):
        return "two buffers share a name"
    for buffer in plan.buffers:
        if buffer.elements < 1 or buffer.dtype not in (*ELEMENT_BYTES, STORE):
            return f"buffer {buffer.id} has no usable size or type"
    for position, item in enumerate(plan.passes):
        if item.index != position:
            return f"pass {item.name} stands at position {position} and says {item.index}"
        if any(port.buffer not in buffers for port in item.ports):
            return f"pass {position} {item.name} uses a buffer that does not exist"
        if not item.variants:
            return f"pass {position} {item.name} has no variant"
        for variant in item.variants:
            if min(*variant.groups, *variant.local) < 1:
                return f"pass {position} {item.name} dispatches nothing"
        uniform = item.uniform or Uniform(0, ())
        for field in uniform.fields:
            if not 0 <= field.offset <= uniform.size - 4 or field.dtype not in UNIFORM_TYPES:
                return f"pass {position} {item.name} has an unusable uniform field {field.name}"
    roles = plan.roles
    for role in (roles.weights, roles.gradient, roles.target, roles.output, roles.loss):
        if role and role not in buffers:
            return f"a role names buffer {role}, which does not exist"
    steered = [control.index for controls in roles.controls.values() for control in controls]
    if any(not 0 <= index < len(plan.passes) for index in (*roles.average, *steered)):
        return "a role names a pass that does not exist"
    return None
