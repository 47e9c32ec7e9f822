"""Which dispatches need a barrier before them, derived from what each pass declares that it reads and writes.

A barrier here is a memory barrier between compute dispatches: it orders everything before it against everything
after it, so one is enough for all hazards of a dispatch, and it also settles every earlier access.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from convtrain.graph.types import BufferId, Pass


@dataclass(frozen=True)
class Hazard:
    """Why a barrier is needed: pass ``before`` and the pass after it touch ``buffer`` in the order ``kind``."""

    kind: str  # "RAW" | "WAR" | "WAW"
    buffer: BufferId
    before: int


@dataclass(frozen=True)
class Accesses:
    """The buffers that one pass reads and writes."""

    index: int
    reads: frozenset[BufferId]
    writes: frozenset[BufferId]


def accesses(item: Pass) -> Accesses:
    """What ``item`` declares through its ports."""
    return Accesses(
        item.index,
        frozenset(port.buffer for port in item.ports if port.access.reads),
        frozenset(port.buffer for port in item.ports if port.access.writes),
    )


class HazardTracker:
    """Follows a stream of dispatches and says before which ones a barrier must stand."""

    def __init__(self) -> None:
        self._readers: dict[BufferId, int] = {}  # since the last barrier: buffer -> last pass
        self._writers: dict[BufferId, int] = {}

    def step(self, access: Accesses) -> tuple[Hazard, ...]:
        """Hazards between ``access`` and what came since the last barrier; when there are any, a barrier is set."""
        found = [Hazard("RAW", key, self._writers[key]) for key in sorted(access.reads) if key in self._writers]
        found += [Hazard("WAW", key, self._writers[key]) for key in sorted(access.writes) if key in self._writers]
        found += [Hazard("WAR", key, self._readers[key]) for key in sorted(access.writes) if key in self._readers]
        if found:
            self._readers.clear()
            self._writers.clear()
        self._readers.update(dict.fromkeys(access.reads, access.index))
        self._writers.update(dict.fromkeys(access.writes, access.index))
        return tuple(found)


def derive(stream: Iterable[Accesses]) -> list[tuple[Hazard, ...]]:
    """For each dispatch of a stream, the hazards that put a barrier before it (none: no barrier)."""
    tracker = HazardTracker()
    return [tracker.step(access) for access in stream]
