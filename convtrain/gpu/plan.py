"""From a device's snapshot and a plan's description to everything that execution needs, without touching Vulkan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from convtrain.errors import InputError
from convtrain.gpu import limits
from convtrain.gpu.placement import Layout, block_limit, pack
from convtrain.gpu.requirements import needed_flags, reasons_against
from convtrain.gpu.snapshot import DeviceSnapshot
from convtrain.gpu.submits import PACES, DispatchSequence, Pace, arrange, estimate, pieces_of
from convtrain.gpu.switches import NO_SWITCHES, Switches
from convtrain.graph.types import Buffer, Pass, Plan, Variant

PLAN_PREFERENCE = ("fused-f16", "reference", "fused")
CPU_PLAN_PREFERENCE = ("fused-f16", "fused", "reference")
"""What ``auto`` tries, fastest first; plans of other names come after these, in alphabetical order."""


@dataclass(frozen=True)
class Rejected:
    """A variant (or plan) that was not taken, and every reason."""

    name: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Choice:
    """The variant taken for one pass, and the better ones that the device cannot run."""

    index: int
    variant: Variant
    rejected: tuple[Rejected, ...]


@dataclass(frozen=True)
class ExecutionPlan:
    """A plan made concrete for one device. ``snapshot`` has the kill switches applied."""

    snapshot: DeviceSnapshot
    plan: Plan
    switches: Switches
    storage: str  # "f32" | "f16"
    choices: tuple[Choice, ...]  # by pass index
    features: frozenset[str]  # device features to enable: flags of the snapshot, "subgroup_size", "matrices"
    device_memory: Layout  # slots by buffer id
    host_memory: Layout  # slots by buffer id, and by uniform_key() for uniform blocks
    pace: Pace
    split: frozenset[int]  # passes that may be dispatched in pieces

    @cached_property
    def seconds(self) -> tuple[float, ...]:
        """Estimated seconds of each pass, pessimistic."""
        sizes = {buffer.id: buffer.nbytes(self.storage) for buffer in self.plan.buffers}
        return tuple(_seconds(item, sizes, self.pace) for item in self.plan.passes)

    def nbytes(self, buffer: Buffer) -> int:
        return buffer.nbytes(self.storage)

    def variant_classes(self) -> dict[str, int]:
        """How many passes run each variant, by the variant's name."""
        counts: dict[str, int] = {}
        for choice in self.choices:
            counts[choice.variant.name] = counts.get(choice.variant.name, 0) + 1
        return counts


def uniform_key(index: int) -> str:
    """The key of pass ``index``'s uniform block among the slots of host memory."""
    return f"uniform:{index}"


def _seconds(item: Pass, sizes: Mapping[str, int], pace: Pace) -> float:
    return estimate(item, sum(sizes[port.buffer] for port in item.ports), pace)


def choose_variant(device: DeviceSnapshot, item: Pass, storage: str, *, any_size: bool = False) -> Choice:
    """The first variant of a pass that the device can run with this storage, with ``any_size`` for some image.

    Raises InputError when there is none.
    """
    rejected: list[Rejected] = []
    for variant in item.variants:
        reasons = reasons_against(device, item, variant, any_size=any_size)
        if variant.storage not in (None, storage):
            reasons = (f"works on {variant.storage} storage, not {storage}", *reasons)
        if not reasons:
            return Choice(item.index, variant, tuple(rejected))
        rejected.append(Rejected(variant.name, reasons))
    why = "; ".join(f"{entry.name}: {', '.join(entry.reasons)}" for entry in rejected)
    raise InputError(f"{device.title} cannot run pass {item.index} {item.name} with {storage} storage: {why}.")


def _features(choices: tuple[Choice, ...]) -> frozenset[str]:
    found: set[str] = set()
    for choice in choices:
        needs = choice.variant.requires
        found |= needed_flags(choice.variant)
        if needs.subgroup_size is not None:
            found.add("subgroup_size")
        if needs.matrix is not None:
            found.add("matrices")
    return frozenset(found)


def _host_layout(device: DeviceSnapshot, plan: Plan, storage: str) -> Layout:
    sizes = [(buffer.id, buffer.nbytes(storage)) for buffer in plan.buffers if buffer.host]
    sizes += [(uniform_key(item.index), item.uniform.size) for item in plan.passes if item.uniform is not None]
    alignment = max(device.limits.storage_alignment, device.limits.uniform_alignment)
    return pack(sizes, alignment=alignment, largest=block_limit(device))


def _with_storage(device: DeviceSnapshot, plan: Plan, switches: Switches, storage: str) -> ExecutionPlan:
    if storage == "f16" and not device.storage_16bit:
        raise InputError(f"{device.title} has no 16-bit storage buffers.")
    try:
        limits.check_buffers(device, plan, storage)  # before variants: its message says which size would fit
    except limits.TooLarge:
        for item in plan.passes:
            choose_variant(device, item, storage, any_size=True)  # but no size helps where features are missing
        raise
    choices = tuple(choose_variant(device, item, storage) for item in plan.passes)
    sizes = {buffer.id: buffer.nbytes(storage) for buffer in plan.buffers}
    own = [(buffer.id, sizes[buffer.id]) for buffer in plan.buffers if not buffer.host]
    alignment = max(device.limits.storage_alignment, device.limits.texel_alignment)
    layout = pack(own, alignment=alignment, largest=block_limit(device))
    limits.check_total(device, plan, layout)
    pace = PACES[device.kind]
    split = frozenset(item.index for item in plan.passes if pieces_of(_seconds(item, sizes, pace), pace) > 1)
    return ExecutionPlan(
        device,
        plan,
        switches,
        storage,
        choices,
        _features(choices),
        layout,
        _host_layout(device, plan, storage),
        pace,
        split,
    )


def _attempt(make: Callable[..., ExecutionPlan], *arguments: Any) -> ExecutionPlan | InputError:
    try:
        return make(*arguments)
    except InputError as error:
        return error


def _most_useful(failures: Sequence[InputError]) -> InputError:
    """Which of several failures to tell: where only size is in the way, that of what would fit largest."""
    too_large = [failure for failure in failures if isinstance(failure, limits.TooLarge)]
    return max(too_large, key=lambda failure: failure.share) if too_large else failures[-1]


def plan_execution(snapshot: DeviceSnapshot, plan: Plan, switches: Switches = NO_SWITCHES) -> ExecutionPlan:
    """Choose storage and variants, check every limit, and lay out memory.

    Raises InputError (with the bytes needed, the limit that is broken and what would fit, or the features that are
    missing) when the device cannot run the plan with any of its storages; nothing has been allocated then.
    """
    device = switches.apply(snapshot)
    failures: list[InputError] = []
    for storage in plan.storages:
        outcome = _attempt(_with_storage, device, plan, switches, storage)
        if isinstance(outcome, ExecutionPlan):
            return outcome
        failures.append(outcome)
    raise _most_useful(failures or [InputError(f"Plan {plan.name} names no storage type.")])


def sequence(execution: ExecutionPlan, active: tuple[int, ...], *, speed: float = 1.0) -> DispatchSequence:
    """The dispatches of the passes ``active`` (in plan order), with barriers, cut into command buffers.

    ``speed``: how many times faster than the pessimistic estimate the device has proved to be.
    Raises ValueError for a pass that does not exist, is named twice or out of order.
    """
    known = range(len(execution.plan.passes))
    if any(index not in known for index in active) or list(active) != sorted(set(active)):
        raise ValueError(f"not an ascending list of passes of plan {execution.plan.name}: {active}")
    chosen = ((execution.plan.passes[n], execution.choices[n].variant, execution.seconds[n]) for n in active)
    return arrange(chosen, execution.pace, speed=speed)


def preferred(snapshot: DeviceSnapshot, plans: Collection[str], wanted: str = "auto") -> list[str]:
    """The names among ``plans`` that ``wanted`` means, fastest first on this type of device.

    ``auto`` means all of them, any other name the plan called so and its editions: ``fused`` also ``fused-f16``.
    """
    first = [name for name in (CPU_PLAN_PREFERENCE if snapshot.kind == "cpu" else PLAN_PREFERENCE) if name in plans]
    ordered = [*first, *sorted(set(plans) - set(first))]
    return [name for name in ordered if wanted == "auto" or name == wanted or name.startswith(f"{wanted}-")]


def choose_plan(
    snapshot: DeviceSnapshot,
    plans: Mapping[str, Plan],
    switches: Switches = NO_SWITCHES,
    wanted: str = "auto",
    left_out: Mapping[str, str] = MappingProxyType({}),
) -> tuple[ExecutionPlan, tuple[Rejected, ...]]:
    """The first of the plans that ``wanted`` means (see :func:`preferred`) that the device can run.

    Also returns the better plans that were passed over, with reasons. ``CONV_PLAN`` replaces ``auto``. ``left_out``
    says of plans that the archive does not hold why.
    Raises InputError for an unknown plan, or when the device can run none.
    """
    source = ""
    if wanted == "auto" and switches.plan is not None:
        wanted, source = switches.plan, " (CONV_PLAN)"
    names = preferred(snapshot, plans, wanted)
    if plans and not names:
        if wanted in left_out:
            why = f"Plan {wanted}{source} is left out of this archive: {left_out[wanted]}."
        else:
            why = f"There is no plan called '{wanted}'{source}."
        raise InputError(f"{why} This archive has: {', '.join(sorted(plans))}.")
    rejected: dict[str, InputError] = {}
    for name in names:
        outcome = _attempt(plan_execution, snapshot, plans[name], switches)
        if isinstance(outcome, ExecutionPlan):
            return outcome, tuple(Rejected(name, (str(error),)) for name, error in rejected.items())
        rejected[name] = outcome
    raise _most_useful([*rejected.values()] or [InputError("The archive has no plan.")])
