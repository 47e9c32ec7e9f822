"""What the parts of the fused plan share: maps, regions, and kernels on matrix units or fp16 storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from convtrain.graph.builder import WRITE, Kernel, PortRef, PortSpec, size
from convtrain.graph.types import STORE, MatrixShape, Requirements
from cook.recipes.cost import Work
from cook.recipes.fused import tiles
from cook.recipes.fused.regions import Region, Regions, Values
from cook.recipes.reference.base import Base, ceil_div

COLUMN = 14  # strips of a column of the depthwise kernels: 16 with its neighbours
STATE_WORDS = 12  # slang/fused/state.slang; as many as the state block of the reference
GATHERED = 256  # numbers of a layer's gradient that a workgroup of gather_mix adds up
MIX_SHAPE = {"WARPS": 4, "DOWN": 4, "TOGETHER": 2}  # see slang/fused/mix_matrix.slang
MIX_SLICES = 264  # workgroups that share the products of a layer
STEM_MIX_SHAPE, STEM_MIX_SLICES = {"WARPS": 4, "DOWN": 4}, 264  # see slang/fused/stem_mix_matrix.slang
WAVE_TILES = {"WARPS": 4, "DOWN": 5}  # see slang/fused/wave_tiles_matrix.slang
WAVE_MIX = {"WARPS": 4, "PARTS": 8, "GROUPS": 4, "TOGETHER": 2}  # see slang/fused/wave_mix_matrix.slang
WAVE_MIX_SLICES = 99
MIX_BACK_WARPS = 4
GATHER, GATHER_SLICES = {"OCTETS": 4, "ACROSS": 2}, 66  # see slang/fused/mix_back_matrix.slang
STEM_GATHER, STEM_GATHER_SLICES = {"WARPS": 4, "ACROSS": 2, "PARTS": 2}, 132  # see slang/fused/stem_gather_matrix.slang
STEM_SPREAD, STEM_SPREAD_SLICES = {"WARPS": 16}, 128  # leaves multiprocessors to muon
# See the kernels of these names.
WAVE_MOMENTS, WAVE_MOMENTS_SLICES = {"WARPS": 12, "FEATURES": 32}, 132
WAVE_GATHER, WAVE_GATHER_SLICES = {"WARPS": 16, "OUTPUTS": 4, "TOGETHER": 32}, 4
WAVE_SPREAD_WARPS = 16
SPREAD, SPREAD_SLICES = {"OCTETS": 8, "DOWN": 4, "TOGETHER": 1}, 132

Groups = tuple[int, int, int]
Constants = Mapping[str, int | float]

NARROW = MatrixShape(16, 8, 16, "f16", "f16", "f32", "f32")  # what the depthwise kernels multiply by
HALF = Requirements(storage_16bit=True, float16=True)
MATRIX = Requirements(
    matrix=MatrixShape(16, 16, 16, "f16", "f16", "f32", "f32"),
    subgroup_size=32,
    subgroup_ops=("basic",),
    storage_16bit=True,
    float16=True,
    memory_model=True,
)
NARROW_MATRIX = replace(MATRIX, matrix=NARROW)


def share_out(tiles: int, most: int) -> int:
    """In how many slices ``tiles`` are dealt: at most ``most``, and evenly."""
    return ceil_div(tiles, ceil_div(tiles, most))


class FusedBase(Base):
    """``features`` and ``convolved`` are the maps h and d by layer, but for those of layer 0, which are not stored.
    ``fixed``: the layer that reads h in fixed point, or 0. ``tiled``: layer 0 has kernels by tiles beside exact ones.
    ``shares`` counts the slices by kind, ``reports`` the workgroups that report broken gradients."""

    taps: PortRef
    mixes: PortRef
    waves: PortRef
    hidden: PortRef
    heads: PortRef
    turns: PortRef
    basis: PortRef
    coefficients: PortRef
    tile_mix: PortRef
    tile_waves: PortRef
    sharp_features: PortRef
    sharp: PortRef
    terms: PortRef
    loss_weights: dict[str, float]
    similarity: PortRef
    state: PortRef
    dm: PortRef
    momentum: PortRef
    squares: PortRef
    broken: PortRef
    broken_stem: PortRef
    unit_shares: PortRef
    direction: PortRef

    def prepare(self) -> None:
        self.regions = Regions(self.model)
        self.tiled = tiles.fit(self.model)
        self.fixed = 1 if self.model.fine else 0
        self.features: dict[int, PortRef] = {}
        self.convolved: dict[int, PortRef] = {}
        self.shares: dict[str, int] = {}
        self.reports = 0

    def _on_matrices(
        self,
        name: str,
        groups: Groups,
        needs: Requirements = MATRIX,
        *,
        fixed: bool = False,
        head: bool = False,
        spare: bool = False,
        **values: Constants,
    ) -> Kernel:
        """A kernel on matrix units; ``slang/fused/<name>_matrix``. ``fixed``: layer 0's h comes or goes in
        fixed point; ``head``: with the image; ``spare``: works only where layer 0 by tiles does not."""
        source = f"fused/{name}_matrix.slang"
        wanted = {"FIXED": fixed, "HEAD": head, "SPARE": spare}
        defines = tuple(define for define in wanted if wanted[define])
        return Kernel(source, values, groups=groups, name="matrix", requires=needs, storage="f16", defines=defines)

    def _on_halves(self, name: str, groups: Groups, *, tiled: bool = False, **values: Constants) -> Kernel:
        """A plain kernel on fp16 storage; ``slang/fused/<name>``. ``tiled``: with what layer 0 by tiles needs."""
        source, defines = f"fused/{name}.slang", ("TILES",) if tiled else ()
        return Kernel(source, values, groups=groups, name="half", requires=HALF, storage="f16", defines=defines)

    def _map(self, number: int, name: str) -> PortSpec:
        """A port that owns a feature map."""
        return size(number, name, WRITE, self.regions.elements, dtype=STORE)

    def _columns(self, region: Region, segments: int) -> Values:
        """A region as the depthwise kernels take it: columns of strips, each in ``segments`` of bands. The strip before
        a column is the left one of its block. All of the region's blocks are covered."""
        place = {"STRIP0": region.odd_strip0, "STRIPS": region.odd_strips, "BAND0": region.band0, "BANDS": region.bands}
        return {**place, "SEGMENT": ceil_div(region.bands, segments)}

    def _blocks(self, region: Region, slices: int) -> Values:
        """A region's blocks, dealt to ``slices``."""
        place = {"PAIR0": region.pair0, "BAND0": region.band0, "BANDS": region.bands}
        return {**place, "TILES": region.tiles, "SLICES": slices}

    def _work(self, maps: float, flops: int) -> Work:
        """Declared cost of a pass that moves this many maps, with ``flops`` operations an element."""
        elements = self.model.pixels * self.model.nf
        return {"nbytes": int(2 * maps * elements), "flops": flops * elements}
