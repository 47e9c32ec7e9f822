"""Backward passes of the fused plan, from DlOut to the gradient of every weight."""

from __future__ import annotations

from convtrain.graph.builder import READ, WRITE, Kernel, PassSpec, PortRef, size
from convtrain.graph.types import STORE
from cook.recipes.fused.base import (
    COLUMN,
    FIXED,
    GATHER,
    GATHER_SLICES,
    GATHERED,
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
GATHERED_TOGETHER = 64  # numbers that a workgroup of gather_shares adds up
CONV_SEGMENTS = 2  # of a column of strips, each a workgroup's
CONV_SHAPE = {"COLUMN": COLUMN, "WARPS": 2, "BANDS": 1}  # warps of a workgroup, bands as windows


class Backward(StemBack):
    """Two passes a layer, but for layer 0. Then the shares are added."""

    def _backward(self) -> None:
        head_share = self._head_back()
        for layer in reversed(range(1, self.model.layers)):
            mix = self._mix_back(layer)
            slices = self.shares["MIX"]
            self._gather_mix(layer, mix[6], slices, layer * slices)
            conv = self._conv_back(layer, mix)
        stem_share = self._stem_back()
        self._gather(self._gather_shares(conv[5], head_share), stem_share)

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
                fixed=layer == FIXED,
                geometry=self.regions.geometry,
                region={**place, **region.box, "LAYER": layer},
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
                fixed=layer == FIXED,
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

    def _gather_shares(self, tap_share: PortRef, head_share: PortRef) -> PortRef:
        """The shares that need not wait for the stem's, beside it."""
        model = self.model
        counts = model.nf * (model.taps + 1), (model.nf + 1) * 3
        shares = self._add(
            "gather_shares",
            Kernel(
                "fused/gather_shares.slang",
                {"slices": {name: self.shares[name] for name in ("TAPS", "HEAD")}},
                groups=(sum(ceil_div(count, GATHERED_TOGETHER) for count in counts), 1, 1),
            ),
            "backward",
            [
                link(0, "taps", READ, tap_share),
                link(1, "head", READ, head_share),
                size(2, "sums", WRITE, sum(counts)),
            ],
            self.cost.reduce(self.shares["TAPS"] * (model.layers - 1), counts[0]),
            covers=("bwd_kern",),
        )
        return shares[2]

    def _gather(self, sums: PortRef, stem_share: PortRef) -> None:
        model = self.model
        counts = {"STEM": self.shares["STEM"], "REPORTS": model.layers * model.mix_size // GATHERED}
        gather = self._add(
            "gather",
            Kernel("fused/gather.slang", {"slices": counts}, groups=(model.nf, 1, 1)),
            "backward",
            [
                link(0, "state", READ, self.state),
                link(1, "weights", READ, self.weights),
                link(2, "kernel", READ, self.kernel),
                link(3, "hidden", READ, self.hidden),
                link(4, "sums", READ, sums),
                link(5, "stem", READ, stem_share),
                link(6, "gradient", WRITE, self.gradient),
                size(7, "tap_gradient", WRITE, model.nf * model.taps),
                link(8, "broken", WRITE, self.broken),
            ],
            self.cost.reduce(self.shares["STEM"], 6 * model.nf),
            covers=("bwd_kern",),
        )
        self._add_reader(
            "kern_back",
            Kernel("fused/kern_back.slang", groups=(model.kn, 1, 1)),
            "backward",
            [
                link(1, "tap_gradient", READ, gather[7]),
                link(2, "hidden", READ, self.hidden),
                link(3, "gradient", WRITE, self.gradient),
            ],
            self.cost.kern(),
            covers=("bwd_kern",),
        )
