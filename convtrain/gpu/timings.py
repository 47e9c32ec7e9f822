"""What a measured run reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PassTiming:
    """The GPU time of one pass in one run of a sequence."""

    index: int
    nanoseconds: float


def interval(start: int, end: int, valid_bits: int) -> int:
    """Ticks from ``start`` to ``end`` of a counter of ``valid_bits`` bits that may have wrapped once."""
    mask = (1 << valid_bits) - 1
    return (end - start) & mask
