"""Backward passes of layer 0, which compute its h and d again and store no gradients of them: the exact ones and, where
waves are gentle, by tiles. Both are in the plan then, and those that the weights do not suit return at once."""

from __future__ import annotations

from convtrain.graph.builder import READ, WRITE, PassSpec, PortRef, size
from convtrain.graph.types import STORE
from cook.recipes.fused import tiles
from cook.recipes.fused.base import (
    STEM_GATHER,
    STEM_GATHER_SLICES,
    STEM_SPREAD,
    STEM_SPREAD_SLICES,
    WAVE_GATHER,
    WAVE_GATHER_SLICES,
    WAVE_MOMENTS,
    WAVE_MOMENTS_SLICES,
    WAVE_SPREAD_WARPS,
    share_out,
)
from cook.recipes.fused.muon import Muon
from cook.recipes.fused.regions import Values
from cook.recipes.reference.base import Link, ceil_div, link


class StemBack(Muon):
    """dM of layer 0, the direction of Muon's step, and layer 0's shares of stem, taps and bias."""

    def _stem_back(self, tap_share: PortRef, head_share: PortRef) -> None:
        """Whatever writes the same buffer as a kernel by tiles comes early, so that nothing waits for it. Muon's few
        workgroups run beside those that spread dm, which are put first: what follows waits for them alone."""
        gather = self._stem_gather()
        if self.tiled:
            spread = self._stem_spread()
            moments = self._wave_moments()
            sums = self._gather_shares(tap_share, head_share)
            self._wave_gather(moments, gather[3])
            self._gather_mix(0, gather[3], self.shares["STEM_MIX"], tiled=self.shares["TILED_MIX"])
            self._muon_direction()
            self._wave_spread(moments, spread)
        else:
            sums = self._gather_shares(tap_share, head_share)
            self._gather_mix(0, gather[3], self.shares["STEM_MIX"])
            self._muon_direction()
            spread = self._stem_spread()
        self._gather(sums, spread[4])

    def _gate(self, number: int) -> list[Link]:
        """The port by which an exact kernel sees whether it is wanted."""
        return [link(number, "sharp", READ, self.sharp)] if self.tiled else []

    def _stem_gather(self) -> PassSpec:
        """Layer 0's dM."""
        model, region, parts = self.model, self.regions.widest, STEM_GATHER["PARTS"]
        self.shares["STEM_MIX"] = slices = share_out(region.tiles, STEM_GATHER_SLICES)
        return self._add_reader(
            "stem_gather",
            self._on_matrices(
                "stem_gather",
                (parts * slices, 1, 1),
                spare=self.tiled,
                geometry=self.regions.geometry,
                region={**self._blocks(region, slices), **region.box, **self.regions.origin},
                shape=STEM_GATHER,
            ),
            "backward",
            [
                link(1, "waves", READ, self.waves),
                link(2, "dm", READ, self.dm),
                size(3, "partial", WRITE, slices * model.mix_size),
                *self._gate(4),
            ],
            self._work(1, 4 * model.nf),
            covers=("gemm_mixw",),
        )

    def _stem_spread(self) -> PassSpec:
        """What the gradients of stem, taps and bias get from layer 0."""
        model, region = self.model, self.regions.widest
        self.shares["STEM"] = slices = share_out(region.tiles, STEM_SPREAD_SLICES)
        spread = self._add_reader(
            "stem_spread",
            self._on_matrices(
                "stem_spread",
                (slices, 1, 1),
                spare=self.tiled,
                geometry=self.regions.geometry,
                region={**self._blocks(region, slices), **region.box, **self.regions.origin},
                shape=STEM_SPREAD,
            ),
            "backward",
            [
                link(1, "waves", READ, self.waves),
                link(2, "dm", READ, self.dm),
                link(3, "mixes", READ, self.mixes),
                size(4, "partial", WRITE, slices * model.nf * 6),
                size(5, "broken", WRITE, slices, dtype="u32"),
                *self._gate(6),
            ],
            self._work(1, 4 * model.nf + 60),
            covers=("gemm_mixx", "unpack_dm", "bwd_dw_x", "bwd_dw_k", "bwd_kern", "bwd_stem"),
        )
        self.broken_stem = spread[5]
        return spread

    def _tile_slices(self, slices: int) -> Values:
        """The tiles of layer 0, dealt to ``slices``."""
        region = self.regions.widest
        return {**self._blocks(region, slices), "TILES": tiles.count(region), **self.regions.origin}

    def _wave_moments(self) -> PassSpec:
        """What dM and the shares follow from."""
        model, region, count = self.model, self.regions.widest, tiles.count(self.regions.widest)
        together = WAVE_MOMENTS["WARPS"] * WAVE_MOMENTS["FEATURES"] // model.nf  # tiles of a workgroup at a time
        groups = ceil_div(share_out(count, together * WAVE_MOMENTS_SLICES), together)
        return self._add_reader(
            "wave_moments",
            self._on_matrices(
                "wave_moments",
                (groups, 1, 1),
                geometry=self.regions.geometry,
                region={**self._tile_slices(groups * together), **region.box},
                shape=WAVE_MOMENTS,
            ),
            "backward",
            [
                link(1, "sharp", READ, self.sharp),
                link(2, "basis", READ, self.basis),
                link(3, "dm", READ, self.dm),
                size(4, "moments", WRITE, count * model.nf * tiles.TERMS, dtype=STORE),
                size(5, "middles", WRITE, count * model.nf, dtype="u32"),
            ],
            self._work(1, 2 * tiles.TERMS),
            covers=("gemm_mixx", "gemm_mixw"),
        )

    def _wave_gather(self, moments: PassSpec, partial: PortRef) -> None:
        """Layer 0's dM."""
        model, count = self.model, tiles.count(self.regions.widest)
        self.shares["TILED_MIX"] = slices = share_out(ceil_div(count, WAVE_GATHER["TOGETHER"]), WAVE_GATHER_SLICES)
        self._add_reader(
            "wave_gather",
            self._on_matrices(
                "wave_gather",
                (slices * model.nf // WAVE_GATHER["OUTPUTS"], 1, 1),
                region={"TILES": count, "SLICES": slices},
                shape=WAVE_GATHER,
            ),
            "backward",
            [
                link(1, "sharp", READ, self.sharp),
                link(2, "waves", READ, self.waves),
                link(3, "coefficients", READ, self.coefficients),
                link(4, "moments", READ, moments[4]),
                link(5, "middles", READ, moments[5]),
                link(6, "partial", WRITE, partial),
            ],
            {"nbytes": 2 * count * model.nf * (tiles.TERMS + 2), "flops": 4 * count * tiles.TERMS * model.nf**2},
            covers=("gemm_mixw",),
        )

    def _wave_spread(self, moments: PassSpec, spread: PassSpec) -> None:
        """What the gradients of stem, taps and bias get from layer 0."""
        model, count, slices = self.model, tiles.count(self.regions.widest), self.shares["STEM"]
        self._add_reader(
            "wave_spread",
            self._on_matrices(
                "wave_spread",
                (slices, 1, 1),
                geometry=self.regions.geometry,
                region=self._tile_slices(slices),
                shape={"WARPS": WAVE_SPREAD_WARPS},
            ),
            "backward",
            [
                link(1, "sharp", READ, self.sharp),
                link(2, "waves", READ, self.waves),
                link(3, "coefficients", READ, self.coefficients),
                link(4, "moments", READ, moments[4]),
                link(5, "mixes", READ, self.mixes),
                link(6, "partial", WRITE, spread[4]),
                link(7, "broken", WRITE, spread[5]),
            ],
            {"nbytes": 2 * count * model.nf * tiles.TERMS, "flops": 4 * count * tiles.TERMS * model.nf**2},
            covers=("gemm_mixx", "unpack_dm", "bwd_dw_x", "bwd_dw_k", "bwd_kern", "bwd_stem"),
        )
