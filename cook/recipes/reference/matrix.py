"""Kernels of the matrix products, in order of preference."""

from __future__ import annotations

from convtrain.graph.builder import Kernel
from convtrain.graph.types import Requirements
from cook.model import TILE, ModelConfig
from cook.recipes.reference.blocking import Blocking

SUBGROUP = 8
OCTETS = Requirements(subgroup_size=SUBGROUP, subgroup_ops=("basic", "shuffle"))
"""Broadcasts within subgroups of 8: what CPU drivers have, to whom a load costs ten times as much as a broadcast."""

GRADIENT_BLOCK = 8  # rows and columns of a scalar weight-gradient block


def product(model: ModelConfig, cut: Blocking, *, inner: int, rows: int) -> tuple[Kernel, ...]:
    """A packed matrix times ``inner`` planes: ``rows`` planes, in tiles."""
    tiles = model.padded_pixels // TILE
    return (
        Kernel(
            "gemm_octets.slang",
            values={"dims": {"K": inner, "N": rows, "ROWS": cut.subgroup_rows}},
            groups=(tiles, rows // cut.subgroup_rows, 1),
            name="octets",
            requires=OCTETS,
        ),
        Kernel(
            "gemm.slang",
            values={"dims": {"K": inner, "N": rows, "ROWS": cut.rows}},
            groups=(tiles, rows // cut.rows, 1),
        ),
    )


def weight_gradient(model: ModelConfig, cut: Blocking) -> tuple[Kernel, ...]:
    """cat times dm over slices of the pixels."""
    rows = 4 * SUBGROUP if model.nf % (2 * SUBGROUP) == 0 else 2 * SUBGROUP  # divides 2 NF
    return (
        Kernel(
            "gemm_mixw_octets.slang",
            values={"block": {"ROWS": rows, "COLUMNS": cut.subgroup_rows}},
            groups=(model.slices, 2 * model.nf // rows, model.nf // cut.subgroup_rows),
            name="octets",
            requires=OCTETS,
        ),
        Kernel(
            "gemm_mixw.slang",
            values={"block": {"ROWS": GRADIENT_BLOCK, "COLUMNS": GRADIENT_BLOCK}},
            groups=(model.slices, 2 * model.nf // GRADIENT_BLOCK, model.nf // GRADIENT_BLOCK),
        ),
    )
