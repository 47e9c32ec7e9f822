"""How the kernels cut their work: register tiles, strips and walks, by the size of the problem."""

from __future__ import annotations

from dataclasses import dataclass

from cook.model import ModelConfig

QUICK = 1 << 12
"""Smaller domains take no time on any device: only the time it takes to build the pipelines counts."""

UNROLLED = 448
"""Multiplications that a depthwise kernel unrolls: 8 columns of 7 × 7 taps. Larger kernels get narrower strips."""


@dataclass(frozen=True)
class Blocking:
    """Sizes that are injected into the kernels. They decide how fast it goes, not what is computed.

    Matrix kernels keep ``rows`` rows of a product in registers, those with subgroup operations ``subgroup_rows``.
    A depthwise kernel walks down ``walk`` rows of a strip of ``columns`` columns.
    """

    rows: int  # divides NF
    subgroup_rows: int  # divides NF
    columns: int
    walk: int

    @classmethod
    def of(cls, model: ModelConfig) -> Blocking:
        """The sizes for a model."""
        columns = max(1, min(8, UNROLLED // model.taps))
        if model.padded_pixels < QUICK:
            return cls(rows=8, subgroup_rows=8, columns=min(columns, 4), walk=16)
        return cls(
            rows=_divisor(model.nf, 16, 8), subgroup_rows=_divisor(model.nf, 32, 16, 8), columns=columns, walk=40
        )


def _divisor(number: int, *candidates: int) -> int:
    return next(candidate for candidate in candidates if number % candidate == 0)
