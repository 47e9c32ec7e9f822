"""Cut a training plan down to what drawing the picture needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from convtrain.graph.types import BufferId, Control, Kind, Pass, Plan, Port


def inference_plan(plan: Plan, weights: str) -> Plan:
    """The plan with only its ``infer`` passes and the buffers they touch, numbered as if built that way.

    The weight buffer is seeded by the blob ``weights`` (SHA-256). No buffer or uniform is training state any more, and
    the roles that only training has (gradient, target, loss, state, average) are empty. Passes and buffers get new
    numbers where training passes stood before them; labels stay.

    Raises ValueError for a plan whose inference passes read what only training passes produce.
    """
    kept = [item for item in plan.passes if item.infer]
    position = {item.index: number for number, item in enumerate(kept)}
    owners: dict[BufferId, BufferId] = {}
    for number, item in enumerate(kept):
        for port in item.ports:
            # A training pass may have owned the buffer: then the first inference pass that sees it does.
            if port.kind is not Kind.SHARE or port.buffer not in owners:
                owners[port.buffer] = f"{number}-{port.number}"
    _check_sources(plan, kept)

    buffers = []
    for buffer in plan.buffers:
        if buffer.id in owners:
            seed = weights if buffer.id == plan.roles.weights else buffer.seed
            label = owners[buffer.id] if buffer.label == buffer.id else buffer.label
            buffers.append(replace(buffer, id=owners[buffer.id], label=label, seed=seed, dump=False))
    seeded = {buffer.id: buffer.seed is not None for buffer in buffers}

    def port_of(number: int, port: Port) -> Port:
        owner = owners[port.buffer]
        kind = Kind.SHARE if owner != f"{number}-{port.number}" else Kind.DATA if seeded[owner] else Kind.SIZE
        return replace(port, kind=kind, buffer=owner)

    passes = tuple(
        replace(
            item,
            index=number,
            ports=tuple(port_of(number, port) for port in item.ports),
            uniform=item.uniform and replace(item.uniform, dump=False),
        )
        for number, item in enumerate(kept)
    )
    roles = replace(
        plan.roles,
        weights=owners[plan.roles.weights],
        output=owners[plan.roles.output],
        gradient="",
        target="",
        loss="",
        loss_fields=(),
        state="",
        average=(),
        controls=_controls(plan.roles.controls, position),
    )
    return Plan(plan.name, plan.storages, passes, tuple(buffers), roles)


def _check_sources(plan: Plan, kept: list[Pass]) -> None:
    ready = {buffer.id for buffer in plan.buffers if buffer.seed is not None} | {plan.roles.weights}
    seen = set()
    for item in kept:
        for port in item.ports:
            seen.add(port.buffer)
            if port.access.reads and not port.access.writes and port.buffer not in ready:
                raise ValueError(f"plan {plan.name}: inference pass {item.name} reads {port.name}, which none writes")
        ready |= {port.buffer for port in item.ports if port.access.writes}
    if not {plan.roles.weights, plan.roles.output} <= seen:
        raise ValueError(f"plan {plan.name}: its inference passes touch no weights or no output")


def _controls(
    controls: Mapping[str, tuple[Control, ...]], position: Mapping[int, int]
) -> dict[str, tuple[Control, ...]]:
    cut = {
        name: tuple(Control(position[item.index], item.field) for item in items if item.index in position)
        for name, items in controls.items()
    }
    return {name: items for name, items in cut.items() if items}
