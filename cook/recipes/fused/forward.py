"""Forward passes of the fused plan: what the kernels multiply by, stem, layers and head."""

from __future__ import annotations

from convtrain.graph.builder import READ, WRITE, PassSpec, PortRef, PortSpec, UniformSpec, data, size
from convtrain.graph.types import STORE
from cook.recipes.fused import tiles
from cook.recipes.fused.base import (
    COLUMN,
    MIX_SHAPE,
    MIX_SLICES,
    NARROW_MATRIX,
    STEM_MIX_SHAPE,
    STEM_MIX_SLICES,
    WAVE_MIX,
    WAVE_MIX_SLICES,
    WAVE_TILES,
    FusedBase,
    share_out,
)
from cook.recipes.reference.base import Link, ceil_div, link

OPERANDS = 512  # workgroup size of operands
WAVE_NUMBERS = 12  # slang/fused/wave.slang
WAVE_FEATURES = 8  # of a step of wave_tiles
OFFSETS = {"offset_x": "offset_x", "offset_y": "offset_y"}  # controls of a pass that knows coordinates
CONV_SEGMENTS = 4  # of a column of strips, each a workgroup's
CONV_SHAPE = {"COLUMN": COLUMN, "WARPS": 4}  # warps of a workgroup


class Forward(FusedBase):
    """Two passes a layer, but one for layer 0, which computes its features and their convolution by itself, or two by
    tiles."""

    def _forward(self) -> None:
        self._operands()
        made = self._wave_tiles() if self.tiled else None
        stem = self._stem_mix()
        self.features[1] = stem[3]
        if made:
            self._wave_mix(made, stem)
        for layer in range(1, self.model.layers):
            self.convolved[layer] = self._conv(layer)
            self.features[layer + 1] = self._mix(layer)

    def _operands(self) -> None:
        model = self.model
        toeplitz, mixes = 256 * model.ks * model.nf, 2 * model.layers * model.mix_size
        taps, heads = model.nf * model.taps, 32 * model.nf
        tile_mix = (2 * model.nf + tiles.CONSTANTS) * model.nf * tiles.TERMS if self.tiled else 0
        region, steps = self.regions.widest, model.nf // WAVE_FEATURES + 1
        corner = {"X": 16 * region.pair0 - self.regions.origin_x, "Y": 4 * region.band0 - self.regions.origin_y}
        place = {"LIMIT": tiles.LIMIT, "COUNT": self._padded_tiles, "TALL": tiles.tall(region), **corner}
        tile_waves = 4 * WAVE_FEATURES * steps * self._padded_tiles if self.tiled else 0
        ports: list[PortSpec | Link] = [
            data(0, "weights", READ, model.weights, "weights", label="WBuf", dump=True),
            size(1, "kernel", WRITE, taps, label="KBuf", shape=(model.nf, model.ks, model.ks)),
            size(2, "taps", WRITE, toeplitz, dtype=STORE),
            size(3, "mixes", WRITE, mixes, dtype=STORE),
            size(4, "waves", WRITE, WAVE_NUMBERS * model.nf),
            size(5, "hidden", WRITE, 2 * model.kn * model.taps),
            size(6, "heads", WRITE, heads, dtype=STORE),
            size(7, "turns", WRITE, 2 * taps),
        ]
        if self.tiled:
            ports += [
                size(8, "basis", WRITE, tiles.TERMS * tiles.PIXELS, dtype=STORE),
                size(9, "coefficients", WRITE, 3 * tiles.TERMS * model.nf),
                size(10, "tile_mix", WRITE, tile_mix, dtype=STORE),
                size(11, "sharp_features", WRITE, model.nf, dtype="u32"),
                size(12, "tile_waves", WRITE, tile_waves, dtype=STORE),
            ]
        units = [mixes // 8, heads // 8]  # workgroups are of one kind each
        if self.tiled:
            units += [tiles.TERMS * tiles.PIXELS // 8, OPERANDS, tile_waves // 16]
        groups = (model.nf + sum(ceil_div(count, OPERANDS) for count in units), 1, 1)
        operands = self._add(
            "operands",
            self._on_halves("operands", groups, tiled=self.tiled, tiles=place),
            "forward",
            ports,
            self.cost.copy(toeplitz + mixes + tile_mix + tile_waves),
            infer=True,
            uniform=UniformSpec(controls=OFFSETS) if self.tiled else None,
            covers=("kern", "pack_mix", "pack_wmix"),
        )
        self.weights, self.kernel = operands[0], operands[1]
        self.taps, self.mixes, self.waves, self.hidden = operands[2], operands[3], operands[4], operands[5]
        self.heads, self.turns = operands[6], operands[7]
        if self.tiled:
            self.basis, self.coefficients = operands[8], operands[9]
            self.tile_mix, self.sharp_features, self.tile_waves = operands[10], operands[11], operands[12]

    @property
    def _padded_tiles(self) -> int:
        """As many as the workgroups of ``wave_tiles`` make."""
        together = 16 * WAVE_TILES["DOWN"]
        return together * ceil_div(tiles.count(self.regions.widest), together)

    def _stem_mix(self) -> PassSpec:
        """Layer 0's product, of plane waves and their convolution, which it computes by itself. Where there are tiles
        it has work only when a wave is too sharp for them, and otherwise costs nothing beside ``wave_tiles``."""
        region = self.regions.widest
        strips = 2 * region.tiles
        slices = share_out(strips, STEM_MIX_SLICES)
        return self._add_reader(
            "stem_mix",
            self._on_matrices(
                "stem_mix",
                (slices, 1, 1),
                fixed=bool(self.fixed),
                spare=self.tiled,
                geometry=self.regions.geometry,
                region={**self._blocks(region, slices), **self.regions.origin, "TILES": strips},
                shape=STEM_MIX_SHAPE,
            ),
            "forward",
            [
                link(1, "waves", READ, self.waves),
                link(2, "mixes", READ, self.mixes),
                self._map(3, "next"),
                *([link(4, "sharp_features", READ, self.sharp_features)] if self.tiled else []),
            ],
            self._work(1, 6 * self.model.nf),
            infer=True,
            uniform=UniformSpec(controls=OFFSETS),
            covers=("stem_train", "dw", "gemm_mix", "mix_unpack"),
        )

    def _wave_tiles(self) -> PortRef:
        """Layer 0's m by tiles: what every polynomial has of it. Tells all that follow whether a wave is too sharp."""
        model, count = self.model, self._padded_tiles
        elements = (tiles.TERMS + tiles.MAIN_TERMS) * model.nf * count
        waves = self._add(
            "wave_tiles",
            self._on_matrices(
                "wave_tiles",
                (model.nf // WAVE_TILES["WARPS"], count // (16 * WAVE_TILES["DOWN"]), 1),
                region={"TILES": count},
                shape=WAVE_TILES,
            ),
            "forward",
            [
                link(0, "tile_mix", READ, self.tile_mix),
                link(1, "tile_waves", READ, self.tile_waves),
                link(2, "sharp_features", READ, self.sharp_features),
                size(3, "tiles", WRITE, elements, dtype=STORE),
                size(4, "sharp", WRITE, 1, dtype="u32"),
            ],
            self.cost.matrix(elements, 4 * model.nf),
            infer=True,
            covers=("stem_train", "dw", "gemm_mix"),
        )
        self.sharp = waves[4]
        return waves[3]

    def _wave_mix(self, made: PortRef, stem: PassSpec) -> None:
        """What ``stem_mix`` writes, from tiles."""
        region, count = self.regions.widest, tiles.count(self.regions.widest)
        slices = share_out(count, WAVE_MIX_SLICES)
        self._add(
            "wave_mix",
            self._on_matrices(
                "wave_mix",
                (slices * WAVE_MIX["PARTS"], 1, 1),
                fixed=bool(self.fixed),
                geometry=self.regions.geometry,
                region={**self._blocks(region, slices), "TILES": count},
                shape=WAVE_MIX,
            ),
            "forward",
            [
                link(0, "sharp", READ, self.sharp),
                link(1, "basis", READ, self.basis),
                link(2, "tiles", READ, made),
                link(3, "next", WRITE, stem[3]),
            ],
            self._work(1, 2 * (tiles.TERMS + tiles.MAIN_TERMS)),
            infer=True,
            covers=("mix_unpack",),
        )

    def _conv(self, layer: int) -> PortRef:
        """In fixed point, layer 1's h comes as a sum of two halves, which both are multiplied."""
        model, region, fixed = self.model, self.regions.features(layer + 1), layer == self.fixed
        conv = self._add(
            "conv",
            self._on_matrices(
                "conv",
                (model.nf // CONV_SHAPE["WARPS"], CONV_SEGMENTS, ceil_div(region.odd_strips, COLUMN)),
                NARROW_MATRIX,
                fixed=fixed,
                geometry=self.regions.geometry,
                window={"RADIUS": model.radius, **CONV_SHAPE, "BANDS": 2},  # windows of h, and d or a second half of h
                region=self._columns(region, CONV_SEGMENTS),
            ),
            "forward",
            [
                link(0, "h", READ, self.features[layer]),
                link(1, "taps", READ, self.taps),
                link(2, "weights", READ, self.weights),
                self._map(3, "d"),
            ],
            self._work(2, 2 * model.taps * (1 + fixed)),
            infer=True,
            covers=("dw",),
        )
        return conv[3]

    def _mix(self, layer: int) -> PortRef:
        """The last layer's gives the image too."""
        region, head = self.regions.features(layer + 1), layer == self.model.layers - 1
        halves = 2 * region.tiles  # of blocks
        slices = share_out(halves, MIX_SLICES)
        ports: list[PortSpec | Link] = [
            link(0, "h", READ, self.features[layer]),
            link(1, "d", READ, self.convolved[layer]),
            link(2, "mixes", READ, self.mixes),
            self._map(3, "next"),
        ]
        if head:
            image = size(6, "image", WRITE, self.image, label="Out", shape=self.image_shape)
            ports += [link(4, "heads", READ, self.heads), link(5, "weights", READ, self.weights), image]
        mix = self._add(
            "mix",
            self._on_matrices(
                "mix",
                (slices, 1, 1),
                fixed=layer == self.fixed,
                head=head,
                geometry=self.regions.geometry,
                region={**self._blocks(region, slices), "TILES": halves, "LAYER": layer},
                origin={"X": self.regions.origin_x, "Y": self.regions.origin_y},
                shape=MIX_SHAPE,
            ),
            "forward",
            ports,
            self._work(3, 4 * self.model.nf),
            infer=True,
            covers=("gemm_mix", "mix_unpack", *(("head",) if head else ())),
        )
        if head:
            self.output = mix[6]
        return mix[3]
