"""Forward passes of the fused plan: what the kernels multiply by, stem, layers and head."""

from __future__ import annotations

from convtrain.graph.builder import READ, WRITE, PassSpec, PortRef, UniformSpec, data, size
from convtrain.graph.types import STORE
from cook.recipes.fused.base import (
    COLUMN,
    FINE_MIX_SHAPE,
    MIX_SHAPE,
    MIX_SLICES,
    NARROW_MATRIX,
    REMAINDER,
    FusedBase,
    share_out,
)
from cook.recipes.reference.base import ceil_div, link

OPERANDS = 512  # workgroup size of operands
STEM_WALK = 4  # blocks that a workgroup of the stem walks along, at most
WAVE_NUMBERS = 16  # slang/fused/wave.slang
CONV_SEGMENTS = 4  # of a column of strips, each a workgroup's
CONV_SHAPE = {"COLUMN": COLUMN, "WARPS": 4, "BANDS": 1}  # warps of a workgroup, bands as windows


class Forward(FusedBase):
    """Two passes a layer, but one for layer 0, whose convolution the stem brings along."""

    def _forward(self) -> None:
        self._operands()
        stem = self._plane_waves()
        self.features.append(stem[2])
        self.convolved.append(stem[3])
        if self.model.fine:
            self.remainders[0] = stem[4]
        for layer in range(self.model.layers):
            if layer > 0:
                self.convolved.append(self._conv(layer))
            self.features.append(self._mix(layer))
        self._head()

    def _operands(self) -> None:
        model = self.model
        toeplitz, mixes = 256 * model.ks * model.nf, 2 * model.layers * model.mix_size
        taps = model.nf * model.taps
        operands = self._add(
            "operands",
            self._on_halves("operands", (model.nf + ceil_div(mixes // 8, OPERANDS), 1, 1)),
            "forward",
            [
                data(0, "weights", READ, model.weights, "weights", label="WBuf", dump=True),
                size(1, "kernel", WRITE, taps, label="KBuf", shape=(model.nf, model.ks, model.ks)),
                size(2, "taps", WRITE, toeplitz, dtype=STORE),
                size(3, "mixes", WRITE, mixes, dtype=STORE),
                size(4, "waves", WRITE, WAVE_NUMBERS * model.nf),
                size(5, "hidden", WRITE, 2 * model.kn * model.taps),
            ],
            self.cost.copy(toeplitz + mixes),
            infer=True,
            covers=("kern", "pack_mix", "pack_wmix"),
        )
        self.weights, self.kernel = operands[0], operands[1]
        self.taps, self.mixes, self.waves, self.hidden = operands[2], operands[3], operands[4], operands[5]

    def _plane_waves(self) -> PassSpec:
        region, fine = self.regions.widest, bool(self.model.fine)
        walk = ceil_div(region.pairs, ceil_div(region.pairs, STEM_WALK))
        values = {"PAIR0": region.pair0, "PAIRS": region.pairs, "BAND0": region.band0, "WALK": walk}
        return self._add_reader(
            "stem",
            self._on_halves(
                "stem",
                (region.bands, ceil_div(region.pairs, walk), self.model.nf // 32),
                fine=fine,
                geometry=self.regions.geometry,
                region={**values, **self.regions.origin},
            ),
            "forward",
            [
                link(1, "waves", READ, self.waves),
                self._map(2, "h"),
                self._map(3, "d"),
                *([self._remainder(4, "remainder")] if fine else []),
            ],
            self._work(2 + REMAINDER * fine, 45),
            infer=True,
            uniform=UniformSpec(controls={"offset_x": "offset_x", "offset_y": "offset_y"}),
            covers=("stem_train", "dw"),
        )

    def _conv(self, layer: int) -> PortRef:
        """Layer 1's takes the h of a fine model in two halves: here and in layer 0's product rounding costs most."""
        model, region, fine = self.model, self.regions.features(layer + 1), layer in self.remainders
        conv = self._add(
            "conv",
            self._on_matrices(
                "conv",
                (model.nf // CONV_SHAPE["WARPS"], CONV_SEGMENTS, ceil_div(region.odd_strips, COLUMN)),
                NARROW_MATRIX,
                fine=fine,
                geometry=self.regions.geometry,
                window={"RADIUS": model.radius, **CONV_SHAPE, "BANDS": 1 + fine},
                region=self._columns(region, CONV_SEGMENTS),
            ),
            "forward",
            [
                link(0, "h", READ, self.features[layer]),
                link(1, "taps", READ, self.taps),
                link(2, "weights", READ, self.weights),
                self._map(3, "d"),
                *([link(4, "remainder", READ, self.remainders[layer])] if fine else []),
            ],
            self._work(2 + REMAINDER * fine, 2 * model.taps * (1 + fine)),
            infer=True,
            covers=("dw",),
        )
        return conv[3]

    def _mix(self, layer: int) -> PortRef:
        """Layer 0's takes the remainders of h too in a fine model, and gives those of the next h."""
        region, fine = self.regions.features(layer + 1), layer == 0 and bool(self.model.fine)
        shape = FINE_MIX_SHAPE if fine else MIX_SHAPE
        slices = share_out(region.tiles, MIX_SLICES)
        mix = self._add(
            "mix",
            self._on_matrices(
                "mix",
                (slices, 1, 1),
                fine=fine,
                geometry=self.regions.geometry,
                region={**self._blocks(region, slices), "LAYER": layer},
                shape=shape,
            ),
            "forward",
            [
                link(0, "h", READ, self.features[layer]),
                link(1, "d", READ, self.convolved[layer]),
                link(2, "mixes", READ, self.mixes),
                self._map(3, "next"),
                *([link(4, "remainder", READ, self.remainders[0])] if fine else []),
                *([self._remainder(5, "next_remainder")] if fine else []),
            ],
            self._work(3 + 2 * REMAINDER * fine, (4 + 2 * fine) * self.model.nf),
            infer=True,
            covers=("gemm_mix", "mix_unpack"),
        )
        if fine:
            self.remainders[1] = mix[5]
        return mix[3]

    def _head(self) -> None:
        region = self.regions.features(self.model.layers)
        head = self._add_reader(
            "head",
            self._on_halves(
                "head",
                (region.bands, region.pairs, 1),
                geometry=self.regions.geometry,
                region={
                    "PAIR0": region.pair0,
                    "PAIRS": region.pairs,
                    "BANDS": region.bands,
                    **self.regions.origin,
                },
            ),
            "forward",
            [
                link(1, "h", READ, self.features[-1]),
                size(2, "image", WRITE, self.image, label="Out", shape=self.image_shape),
            ],
            self._work(1, 6),
            infer=True,
        )
        self.output = head[2]
