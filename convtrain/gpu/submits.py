"""Cuts a sequence of dispatches into command buffers so short that no driver takes one for a hang.

Nobody knows a pass's time before it ran, so it is estimated from its declared bytes and operations at rates that
the slowest device of its type reaches with plain scalar shaders. A run that proves faster may be cut more coarsely
(``speed``); the cuts never change a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from convtrain.gpu.barriers import Hazard, accesses, derive
from convtrain.graph.types import Pass, Variant

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Pace:
    """Pessimistic rates of a type of device, and the most seconds that one submit may be expected to take."""

    bandwidth: float  # bytes per second
    arithmetic: float  # operations per second
    budget: float  # seconds


_SLOW = Pace(5e9, 20e9, 0.25)
PACES: Mapping[str, Pace] = {
    "discrete": Pace(50e9, 100e9, 0.5),  # a watchdog waits 2 s at the least (Windows)
    "integrated": _SLOW,
    "virtual": _SLOW,
    "other": _SLOW,
    "cpu": Pace(1e9, 1e9, 2.0),  # no watchdog, but a person who presses Ctrl-C is waiting
}


MARGIN = 4.0
"""How much slower than it has proved to be a device is still taken for: its clock may drop, others may use it."""


@dataclass(frozen=True)
class Step:
    """One dispatch: workgroups ``base`` to ``base + groups`` of a pass, after a barrier when there are hazards."""

    index: int
    base: Triple
    groups: Triple
    hazards: tuple[Hazard, ...]
    seconds: float  # estimated


@dataclass(frozen=True)
class Chunk:
    """The steps of one command buffer."""

    steps: tuple[Step, ...]

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)


@dataclass(frozen=True)
class DispatchSequence:
    """Everything that one run of the passes ``active`` dispatches, in command buffers."""

    active: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    @property
    def seconds(self) -> float:
        return sum(chunk.seconds for chunk in self.chunks)


def estimate(item: Pass, bound_bytes: int, pace: Pace) -> float:
    """Seconds that a pass takes at most. ``bound_bytes`` (the size of its buffers) stands in for undeclared traffic."""
    traffic = item.nbytes if item.nbytes or item.flops else bound_bytes
    return traffic / pace.bandwidth + item.flops / pace.arithmetic


def split_dispatch(groups: Triple, parts: int) -> tuple[tuple[Triple, Triple], ...]:
    """Cut a grid into about ``parts`` pieces along its largest dimension: (base, groups) of each."""
    axis = groups.index(max(groups))
    parts = max(1, min(parts, groups[axis]))
    edges = [groups[axis] * part // parts for part in range(parts + 1)]
    pieces = []
    for first, last in pairwise(edges):
        base, size = [0, 0, 0], list(groups)
        base[axis], size[axis] = first, last - first
        pieces.append(((base[0], base[1], base[2]), (size[0], size[1], size[2])))
    return tuple(pieces)


def pieces_of(seconds: float, pace: Pace) -> int:
    """Into how many dispatches a pass of ``seconds`` has to be cut."""
    return max(1, -int(-seconds // pace.budget))


def cut(steps: Iterable[Step], budget: float) -> tuple[Chunk, ...]:
    """Fill command buffers in order, none beyond ``budget`` seconds unless a single step is."""
    chunks: list[Chunk] = []
    current: list[Step] = []
    filled = 0.0
    for step in steps:
        if current and filled + step.seconds > budget:
            chunks.append(Chunk(tuple(current)))
            current, filled = [], 0.0
        current.append(step)
        filled += step.seconds
    if current:
        chunks.append(Chunk(tuple(current)))
    return tuple(chunks)


def arrange(passes: Iterable[tuple[Pass, Variant, float]], pace: Pace, *, speed: float = 1.0) -> DispatchSequence:
    """The dispatches of a run: ``passes`` are (pass, its variant, estimated seconds) in order.

    ``speed`` is how many times faster than estimated the device has proved to be.
    """
    passes = list(passes)
    hazards = derive(accesses(item) for item, _, _ in passes)
    steps: list[Step] = []
    for (item, variant, seconds), found in zip(passes, hazards, strict=True):
        seconds /= speed
        pieces = split_dispatch(variant.groups, pieces_of(seconds, pace))
        for number, (base, groups) in enumerate(pieces):
            steps.append(Step(item.index, base, groups, () if number else found, seconds / len(pieces)))
    return DispatchSequence(tuple(item.index for item, _, _ in passes), cut(steps, pace.budget))


def batches(sequence: DispatchSequence, repeat: int, budget: float) -> tuple[tuple[int, ...], ...]:
    """Which chunks go into each submit when the sequence runs ``repeat`` times: chunk numbers, repeats in a row."""
    found: list[tuple[int, ...]] = []
    current: list[int] = []
    filled = 0.0
    for number, chunk in [*enumerate(sequence.chunks)] * repeat:
        if current and filled + chunk.seconds > budget:
            found.append(tuple(current))
            current, filled = [], 0.0
        current.append(number)
        filled += chunk.seconds
    return (*found, tuple(current)) if current else tuple(found)


def proven_speed(sequence: DispatchSequence, seconds: float) -> float:
    """The ``speed`` for :func:`arrange` after the sequence really took ``seconds``: a margin is left, and never < 1."""
    return max(1.0, sequence.seconds / (MARGIN * max(seconds, 1e-9)))
