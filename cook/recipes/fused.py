"""Plan ``fused``: the ConvSIREN in 18 + 4·LAYERS passes on fp16 maps and matrix units, and the update's.

Of every layer only h and d are kept: h = sin(m) carries the sign of cos(m) in a spare bit. Gradients in fp16 carry the scale
3·H·W·loss_scale, which ``gather`` divides out where shares of the weight gradients are added up in fp32.
"""

from __future__ import annotations

from convtrain.graph.builder import READ, WRITE, Graph, Kernel, PortRef, UniformSpec, data, share, size
from convtrain.graph.types import STORE, MatrixShape, Requirements
from cook.model import ModelConfig
from cook.recipes.convsiren import Reference
from cook.recipes.regions import TILE_ROWS, Region, Regions, Values, ceil_div

SPAN = 4  # strips of a tile of the depthwise kernels
CONV_WARPS = 1
CONV_BACK_WARPS = 2
MIX_WARPS = 8
HEAD_GROUP = 16  # features per invocation of head_back
MATRIX = Requirements(
    matrix=MatrixShape(16, 16, 16, "f16", "f16", "f32", "f32"),
    subgroup_size=32,
    subgroup_ops=("basic",),
    storage_16bit=True,
    float16=True,
    memory_model=True,
)
HALF = Requirements(storage_16bit=True, float16=True)


def share_out(tiles: int, most: int) -> int:
    """In how many slices ``tiles`` are dealt: at most ``most``, and evenly."""
    return ceil_div(tiles, ceil_div(tiles, most))


class Fused(Reference):
    """Forward and backward anew; loss, update and average as in the reference."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(model)
        self.graph = Graph("fused", storages=("f16",))
        self.regions = Regions(model, SPAN)
        self.steps = 2 * model.radius + 2

    def _matrix(self, name: str, groups: tuple[int, int, int], **values: Values) -> Kernel:
        given = {"geometry": self.regions.geometry, **values}
        return Kernel(f"fused/{name}.slang", given, groups=groups, name="matrix", requires=MATRIX, storage="f16")

    def _plain(self, name: str, threads: tuple[int, int, int], **values: Values) -> Kernel:
        given = {"geometry": self.regions.geometry, **values}
        return Kernel(f"fused/{name}.slang", given, threads=threads, name="half", requires=HALF, storage="f16")

    def _map(self, number: int, name: str) -> object:
        return size(number, name, WRITE, self.regions.elements, dtype=STORE)

    # Forward

    def _forward(self) -> None:
        model, graph = self.model, self.graph
        kern = graph.add(
            "kern",
            Kernel("kern.slang", threads=(model.nf * model.taps, 1, 1)),
            group="forward",
            infer=True,
            ports=[
                data(0, "weights", READ, model.weights, "weights", label="WBuf", dump=True),
                size(1, "kernel", WRITE, model.nf * model.taps, label="KBuf", shape=(model.nf, model.ks, model.ks)),
            ],
            **self.cost.kern(),
        )
        toeplitz, mixes = 512 * self.steps * model.nf, 2 * model.layers * model.mix_size
        operands = graph.add(
            "operands",
            Kernel("fused/operands_f16.slang", threads=((toeplitz + mixes) // 2, 1, 1), storage="f16"),
            group="forward",
            infer=True,
            ports=[
                share(0, "weights", READ),
                share(1, "kernel", READ),
                size(2, "taps", WRITE, toeplitz, dtype=STORE),
                size(3, "mixes", WRITE, mixes, dtype=STORE),
                size(4, "scale", WRITE, 2),
            ],
            uniform=UniformSpec(controls={"loss_scale": "loss_scale"}, initial={"loss_scale": 1.0}),
            covers=("pack_mix", "pack_wmix"),
            **self.cost.copy(toeplitz + mixes),
        )
        graph.alias(kern[1]).to(operands[1])
        self.weights, self.kernel = kern[0], kern[1]
        self.taps, self.mixes, self.scale = operands[2], operands[3], operands[4]
        self._weight_readers = [operands]
        self.h = [self._stem()]
        self.d: list[PortRef] = []
        for layer in range(model.layers):
            self._layer_forward(layer)
        self._head()

    def _stem(self) -> PortRef:
        region = self.regions.stem
        values = {"STRIP0": region.strip0, "STRIPS": region.strips, "Y0": region.y0, "YN": region.rows}
        stem = self.graph.add(
            "stem",
            self._plain("stem", (region.rows, region.strips, self.model.nf), region={**values, **self.regions.origin}),
            group="forward",
            infer=True,
            ports=[share(0, "weights", READ), self._map(1, "h")],
            uniform=UniformSpec(controls={"offset_x": "offset_x", "offset_y": "offset_y"}),
            covers=("stem_train",),
            **self._work(1, 25),
        )
        self._weight_readers.append(stem)
        return stem[1]

    def _layer_forward(self, layer: int) -> None:
        model, graph = self.model, self.graph
        source, region = self.regions.features(layer), self.regions.features(layer + 1)
        tiles = self._tiles(region, 10**6)
        conv = graph.add(
            "conv",
            self._matrix(
                "conv_matrix",
                (model.nf // CONV_WARPS, tiles["SLICES"], 1),
                window={"RADIUS": model.radius, "SPAN": SPAN, "WARPS": CONV_WARPS},
                region={**tiles, "Y0": region.y0, "Y1": region.y1},
                source=source.box,
            ),
            group="forward",
            infer=True,
            ports=[share(0, "h", READ), share(1, "taps", READ), share(2, "weights", READ), self._map(3, "d")],
            covers=("dw",),
            **self._work(2, 2 * model.taps),
        )
        slices = share_out(region.strips * region.blocks, 132)
        mix = graph.add(
            "mix",
            self._matrix(
                "mix_matrix",
                (slices, 1, 1),
                region={**self._blocks(region, slices), "LAYER": layer},
                shape={"WARPS": MIX_WARPS},
            ),
            group="forward",
            infer=True,
            ports=[share(0, "h", READ), share(1, "d", READ), share(2, "mixes", READ), self._map(3, "next")],
            covers=("gemm_mix", "mix_unpack"),
            **self._work(3, 4 * model.nf),
        )
        graph.alias(self.h[layer]).to(conv[0], mix[0])
        graph.alias(self.taps).to(conv[1])
        graph.alias(self.weights).to(conv[2])
        graph.alias(conv[3]).to(mix[1])
        graph.alias(self.mixes).to(mix[2])
        self.d.append(conv[3])
        self.h.append(mix[3])

    def _head(self) -> None:
        model, region = self.model, self.regions.features(self.model.layers)
        head = self.graph.add(
            "head",
            self._plain(
                "head",
                (model.height, region.strips, 1),
                region={"STRIP0": region.strip0, "STRIPS": region.strips, **self.regions.origin},
            ),
            group="forward",
            infer=True,
            ports=[
                share(0, "weights", READ),
                share(1, "h", READ),
                size(2, "image", WRITE, self.image, label="Out", shape=self.image_shape),
            ],
            **self._work(1, 6),
        )
        self.graph.alias(self.h[-1]).to(head[1])
        self._weight_readers.append(head)
        self.output = head[2]

    # Backward

    def _backward(self) -> None:
        model, graph = self.model, self.graph
        region = self.regions.features(model.layers)
        self.shares: dict[str, int] = {}
        self.shares["HEAD"] = slices = share_out(region.strips * ceil_div(model.height, 32), 256)
        head = graph.add(
            "head_back",
            Kernel(
                "fused/head_back.slang",
                {
                    "geometry": self.regions.geometry,
                    "region": {
                        "STRIP0": region.strip0,
                        "STRIPS": region.strips,
                        **self.regions.origin,
                        "SLICES": slices,
                        "GROUP": HEAD_GROUP,
                    },
                },
                groups=(slices, model.nf // HEAD_GROUP, 1),
                name="half",
                requires=HALF,
                storage="f16",
            ),
            group="backward",
            ports=[
                share(0, "weights", READ),
                share(1, "h", READ),
                share(2, "dl_out", READ),
                share(3, "scale", READ),
                self._map(4, "dm"),
                size(5, "partial", WRITE, slices * (model.nf + 1) * 3),
            ],
            covers=("bwd_head_x", "bwd_head_w", "bwd_sin_dm"),
            **self._work(2, 30),
        )
        self._weight_readers.append(head)
        graph.alias(self.h[-1]).to(head[1])
        graph.alias(self.dl_out).to(head[2])
        graph.alias(self.scale).to(head[3])
        self.dm, self.head_share = head[4], head[5]
        self._first: list[PortRef] = []
        for layer in reversed(range(model.layers)):
            self._layer_backward(layer)
        self._gather(self._stem_backward())

    def _layer_backward(self, layer: int) -> None:
        model, graph = self.model, self.graph
        source, region = self.regions.features(layer + 1), self.regions.features(layer)
        first = not self._first
        widest = self.regions.features(1)
        mix_slices = share_out(widest.strips * widest.blocks, 66)
        tiles = self._tiles(region, 51)
        conv_slices = self._tiles(self.regions.stem, 51)["SLICES"]
        self.shares["MIX"], self.shares["TAPS"] = mix_slices, conv_slices
        blocks = self._blocks(source, mix_slices)
        mix = graph.add(
            "mix_back",
            self._matrix(
                "mix_back_matrix",
                (2 * mix_slices, 1, 1),
                region={**blocks, **source.box, "LAYER": layer},
                shape={"WARPS": MIX_WARPS, "ACROSS": 2},
            ),
            group="backward",
            ports=[
                share(0, "h", READ),
                share(1, "d", READ),
                share(2, "dm", READ),
                share(3, "mixes", READ),
                self._map(4, "dh") if first else share(4, "dh", WRITE),
                self._map(5, "dd") if first else share(5, "dd", WRITE),
                size(6, "partial", WRITE, model.layers * mix_slices * model.mix_size)
                if first
                else share(6, "partial", WRITE),
            ],
            covers=("gemm_mixx", "unpack_dm", "gemm_mixw"),
            **self._work(5, 8 * model.nf),
        )
        conv = graph.add(
            "conv_back",
            self._matrix(
                "conv_back_matrix",
                (model.nf // CONV_BACK_WARPS, conv_slices, 1),
                window={"RADIUS": model.radius, "SPAN": SPAN, "WARPS": CONV_BACK_WARPS},
                region={**tiles, **region.box, "SLICES": conv_slices, "LAYER": layer},
                source=source.box,
            ),
            group="backward",
            ports=[
                share(0, "h", READ),
                share(1, "dh", READ),
                share(2, "dd", READ),
                share(3, "taps", READ),
                share(4, "dm", WRITE),
                size(5, "partial", WRITE, model.layers * conv_slices * model.nf * (model.taps + 1))
                if first
                else share(5, "partial", WRITE),
            ],
            covers=("bwd_dw_x", "bwd_dw_k", "bwd_sin_dm"),
            **self._work(4, 4 * model.taps),
        )
        if first:
            self._first = [mix[4], mix[5], mix[6], conv[5]]
        else:
            for port, target in zip(self._first, (mix[4], mix[5], mix[6], conv[5]), strict=True):
                graph.alias(port).to(target)
        graph.alias(self.h[layer]).to(mix[0], conv[0])
        graph.alias(self.d[layer]).to(mix[1])
        graph.alias(self.dm).to(mix[2], conv[4])
        graph.alias(self.mixes).to(mix[3])
        graph.alias(self._first[0]).to(conv[1])
        graph.alias(self._first[1]).to(conv[2])
        graph.alias(self.taps).to(conv[3])

    def _stem_backward(self) -> PortRef:
        model, region = self.model, self.regions.stem
        self.shares["STEM"] = slices = share_out(region.strips * ceil_div(region.rows, 32), 17)
        values = {"STRIP0": region.strip0, "STRIPS": region.strips, "Y0": region.y0, "Y1": region.y1, "SLICES": slices}
        stem = self.graph.add(
            "stem_back",
            self._plain("stem_back", (32 * (model.nf // 4), 4 * slices, 1), region={**values, **self.regions.origin}),
            group="backward",
            ports=[share(0, "dz", READ), size(1, "partial", WRITE, slices * model.nf * 3)],
            covers=("bwd_stem",),
            **self._work(1, 6),
        )
        self.graph.alias(self.dm).to(stem[0])
        return stem[1]

    def _gather(self, stem_share: PortRef) -> None:
        model, graph = self.model, self.graph
        outputs = model.layers * model.mix_size + model.nf * (model.taps + 1 + 3) + 3 * (model.nf + 1)
        reports = ceil_div(outputs, 128)
        gather = graph.add(
            "gather",
            Kernel("fused/gather.slang", {"slices": self.shares}, threads=(outputs, 1, 1)),
            group="backward",
            ports=[
                share(0, "scale", READ),
                share(1, "mix", READ),
                share(2, "taps", READ),
                share(3, "stem", READ),
                share(4, "head", READ),
                size(5, "gradient", WRITE, model.weights, label="GW"),
                size(6, "tap_gradient", WRITE, model.nf * model.taps),
                size(7, "broken", WRITE, reports, dtype="u32"),
            ],
            covers=("reduce_mixw", "bwd_kern"),
            **self.cost.copy(self.shares["MIX"] * model.layers * model.mix_size),
        )
        for port, source in enumerate((self.scale, self._first[2], self._first[3], stem_share, self.head_share)):
            graph.alias(source).to(gather[port])
        self.gradient = gather[5]
        back = graph.add(
            "kern_back",
            Kernel("fused/kern_back.slang", {"dims": {"REPORTS": reports}}, groups=(model.nf + model.kn + 1, 1, 1)),
            group="backward",
            ports=[
                share(0, "weights", READ),
                share(1, "tap_gradient", READ),
                share(2, "broken", READ),
                share(3, "gradient", WRITE),
                share(4, "loss", WRITE),
            ],
            covers=("bwd_kern",),
            **self.cost.kern(),
        )
        self._weight_readers.append(back)
        graph.alias(gather[6]).to(back[1])
        graph.alias(gather[7]).to(back[2])
        graph.alias(self.loss).to(back[4])
        self.gradient_writers.append(back[3])

    # Helpers

    def _tiles(self, region: Region, most: int) -> Values:
        across = ceil_div(region.strips, SPAN)
        tiles = across * ceil_div(region.rows, TILE_ROWS)
        return {
            "STRIP0": region.strip0,
            "STRIPS": region.strips,
            "TILES_X": across,
            "TILES": tiles,
            "SLICES": share_out(tiles, most),
        }

    def _blocks(self, region: Region, slices: int) -> Values:
        return {
            "STRIP0": region.strip0,
            "STRIPS": region.strips,
            "BLOCK0": region.block0,
            "TILES": region.strips * region.blocks,
            "SLICES": slices,
        }

    def _work(self, maps: int, flops_per_element: int) -> dict[str, int]:
        """Declared cost of a pass that moves this many maps."""
        elements = self.model.pixels * self.model.nf
        return {"nbytes": 2 * maps * elements, "flops": flops_per_element * elements}


def build(model: ModelConfig) -> list[Graph]:
    """The plans of a ConvSIREN, the preferred one first."""
    return [Fused(model).build(), Reference(model).build()]
