"""Backward passes of the fused plan, from DlOut to the gradient of every weight."""

from __future__ import annotations

from convtrain.graph.builder import READ, WRITE, PassSpec, PortRef, size
from convtrain.graph.types import STORE
from cook.recipes.fused.base import (
    COLUMN,
    GATHER,
    GATHER_SLICES,
    MIX_BACK_WARPS,
    NARROW_MATRIX,
    SPREAD,
    SPREAD_SLICES,
    STATE_WORDS,
    share_out,
)
from cook.recipes.fused.stem_back import StemBack
from cook.recipes.reference.base import Scratch, ceil_div, link

HEAD_SLICES = 264  # workgroups of head_back, at most
CONV_SEGMENTS = 2  # of a column of strips, each a workgroup's
CONV_SHAPE = {"COLUMN": COLUMN, "WARPS": 2, "BANDS": 1}  # warps of a workgroup, bands as windows


class Backward(StemBack):
    """Three passes a layer, but for layer 0; ``gather_mix`` runs beside the next one."""

    def _backward(self) -> None:
        head_share = self._head_back()
        for layer in reversed(range(1, self.model.layers)):
            mix = self._mix_back(layer)
            slices = self.shares["MIX"]
            self._gather_mix(layer, mix[6], slices, layer * slices)
            conv = self._conv_back(layer, mix)
        self._stem_back(conv[5], head_share)

    def _head_back(self) -> PortRef:
        model, region = self.model, self.regions.features(self.model.layers)
        self.shares["HEAD"] = slices = share_out(region.tiles, HEAD_SLICES)
        values = {"PAIR0": region.pair0, "BANDS": region.bands, "TILES": region.tiles, "SLICES": slices}
        head = self._add_reader(
            "head_back",
            self._on_halves(
                "head_back",
                (slices, 1, 1),
                geometry=self.regions.geometry,
                region={**values, **self.regions.origin},
            ),
            "backward",
            [
                link(1, "h", READ, self.features[model.layers]),
                link(2, "dl_out", READ, self.dl_out),
                size(3, "state", READ, STATE_WORDS, label="state", dtype="u32", dump=True),
                self._map(4, "dm"),
                size(5, "partial", WRITE, slices * (model.nf + 1) * 3),
            ],
            self._work(2, 30),
            covers=("bwd_head_x", "bwd_head_w", "bwd_sin_dm"),
        )
        self.state, self.dm = head[3], head[4]
        return head[5]

    def _mix_back(self, layer: int) -> PassSpec:
        model, region, widest = self.model, self.regions.features(layer + 1), self.regions.widest
        halves = 8 // GATHER["OCTETS"]  # tiles of a block
        self.shares["MIX"] = slices = share_out(widest.tiles * halves, GATHER_SLICES)
        spreads = share_out(region.tiles, SPREAD_SLICES)
        place = {"PAIR0": region.pair0, "BAND0": region.band0, "BANDS": region.bands}
        return self._add(
            "mix_back",
            self._on_matrices(
                "mix_back",
                (2 * slices + spreads, 1, 1),
                fixed=layer == self.fixed,
                geometry=self.regions.geometry,
                region={**place, "LAYER": layer},
                gather={**GATHER, "TILES": region.tiles * halves, "SLICES": slices},
                spread={**SPREAD, "TILES": region.tiles, "SLICES": spreads},
                shape={"WARPS": MIX_BACK_WARPS},
            ),
            "backward",
            [
                link(0, "h", READ, self.features[layer]),
                link(1, "d", READ, self.convolved[layer]),
                link(2, "dm", READ, self.dm),
                link(3, "mixes", READ, self.mixes),
                Scratch(4, "dh", WRITE, self.regions.elements, STORE),
                Scratch(5, "dd", WRITE, self.regions.elements, STORE),
                Scratch(6, "partial", WRITE, model.layers * slices * model.mix_size),
            ],
            self._work(5, 8 * model.nf),
            covers=("gemm_mixx", "unpack_dm", "gemm_mixw"),
        )

    def _conv_back(self, layer: int, mix: PassSpec) -> PassSpec:
        model, region = self.model, self.regions.features(layer)
        source = self.regions.features(layer + 1)
        columns = ceil_div(self.regions.widest.odd_strips, COLUMN)
        self.shares["TAPS"] = slices = columns * CONV_SEGMENTS
        return self._add(
            "conv_back",
            self._on_matrices(
                "conv_back",
                (model.nf // CONV_SHAPE["WARPS"], CONV_SEGMENTS, columns),
                NARROW_MATRIX,
                fixed=layer == self.fixed,
                geometry=self.regions.geometry,
                window={"RADIUS": model.radius, **CONV_SHAPE},
                region={
                    **self._columns(region, CONV_SEGMENTS),
                    "COLUMNS": columns,
                    "SLICES": slices,
                    "LAYER": layer,
                },
                source={
                    "PAIR0": source.pair0,
                    "PAIRS": source.pairs,
                    "BAND0": source.band0,
                    "BANDS": source.bands,
                },
            ),
            "backward",
            [
                link(0, "h", READ, self.features[layer]),
                link(1, "dh", READ, mix[4]),
                link(2, "dd", READ, mix[5]),
                link(3, "taps", READ, self.taps),
                link(4, "dm", WRITE, self.dm),
                Scratch(5, "partial", WRITE, (model.layers - 1) * slices * model.nf * (model.taps + 1)),
            ],
            self._work(4, 4 * model.taps),
            covers=("bwd_dw_x", "bwd_dw_k", "bwd_sin_dm"),
        )
