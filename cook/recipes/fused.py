"""Plan ``fused``: the ConvSIREN on fp16 maps and matrix units, two passes a layer forward and two backward.

Of every layer only h and d are kept: h = sin(m) carries the sign of cos(m) in a spare bit. Gradients in fp16 carry the
scale 3·H·W·loss_scale, which ``gather`` divides out where shares of the weight gradients are added up in fp32. The
device decides the schedule, so that epochs can follow each other without the host.
"""

from __future__ import annotations

from convtrain.graph.builder import (
    READ,
    READ_WRITE,
    WRITE,
    Graph,
    Kernel,
    PassSpec,
    PortRef,
    UniformSpec,
    data,
    share,
    size,
)
from convtrain.graph.types import STORE, MatrixShape, Requirements
from cook.model import ModelConfig
from cook.recipes.convsiren import NEWTON_SCHULZ_STEPS, Reference, ring_port
from cook.recipes.regions import TILE_ROWS, Region, Regions, Values, ceil_div

SPAN = 4  # strips of a tile of the depthwise kernels
CONV_WARPS = 1
CONV_BACK_WARPS = 2
MIX_WARPS, MIX_DOWN, MIX_ACROSS = 16, 8, 4  # see mix_matrix and mix_back_matrix
MIX_SLICES = 132  # workgroups that share the products of a layer
HEAD_GROUP, HEAD_WARPS = 8, 4  # features per invocation of head_back, and warps in a workgroup
MATRIX = Requirements(
    matrix=MatrixShape(16, 16, 16, "f16", "f16", "f32", "f32"),
    subgroup_size=32,
    subgroup_ops=("basic",),
    storage_16bit=True,
    float16=True,
    memory_model=True,
)
STATE_WORDS = 12  # slang/fused/state.slang; as many as the state block of the reference
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
            Kernel("fused/operands_f16.slang", threads=((toeplitz + mixes) // 2 + model.nf, 1, 1), storage="f16"),
            group="forward",
            infer=True,
            ports=[
                share(0, "weights", READ),
                share(1, "kernel", READ),
                size(2, "taps", WRITE, toeplitz, dtype=STORE),
                size(3, "mixes", WRITE, mixes, dtype=STORE),
                size(4, "waves", WRITE, 2 * model.nf),
            ],
            covers=("pack_mix", "pack_wmix"),
            **self.cost.copy(toeplitz + mixes),
        )
        graph.alias(kern[1]).to(operands[1])
        self.weights, self.kernel = kern[0], kern[1]
        self.taps, self.mixes, self.waves = operands[2], operands[3], operands[4]
        self._weight_readers = [operands]
        stem = self._stem()
        self.h, self.d = [stem[2]], [stem[3]]
        for layer in range(model.layers):
            self._layer_forward(layer)
        self._head()

    def _stem(self) -> PassSpec:
        region = self.regions.widest
        values = {"STRIP0": region.strip0, "STRIPS": region.strips, "Y0": region.y0, "YN": region.rows}
        stem = self.graph.add(
            "stem",
            self._plain("stem", (region.rows, region.strips, self.model.nf), region={**values, **self.regions.origin}),
            group="forward",
            infer=True,
            ports=[share(0, "weights", READ), share(1, "waves", READ), self._map(2, "h"), self._map(3, "d")],
            uniform=UniformSpec(controls={"offset_x": "offset_x", "offset_y": "offset_y"}),
            covers=("stem_train", "dw"),
            **self._work(2, 45),
        )
        self._weight_readers.append(stem)
        self.graph.alias(self.waves).to(stem[1])
        return stem

    def _layer_forward(self, layer: int) -> None:
        graph, region = self.graph, self.regions.features(layer + 1)
        if layer > 0:
            self.d.append(self._conv(layer))
        slices = share_out(region.strips * region.blocks, MIX_SLICES)
        mix = graph.add(
            "mix",
            self._matrix(
                "mix_matrix",
                (slices, 1, 1),
                region={**self._blocks(region, slices), "LAYER": layer},
                shape={"WARPS": MIX_WARPS, "DOWN": MIX_DOWN},
            ),
            group="forward",
            infer=True,
            ports=[share(0, "h", READ), share(1, "d", READ), share(2, "mixes", READ), self._map(3, "next")],
            covers=("gemm_mix", "mix_unpack"),
            **self._work(3, 4 * self.model.nf),
        )
        graph.alias(self.h[layer]).to(mix[0])
        graph.alias(self.d[layer]).to(mix[1])
        graph.alias(self.mixes).to(mix[2])
        self.h.append(mix[3])

    def _conv(self, layer: int) -> PortRef:
        model, graph = self.model, self.graph
        source, region = self.regions.features(layer), self.regions.features(layer + 1)
        tiles = self._tiles(region, 97)
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
        graph.alias(self.h[layer]).to(conv[0])
        graph.alias(self.taps).to(conv[1])
        graph.alias(self.weights).to(conv[2])
        return conv[3]

    def _head(self) -> None:
        model, region = self.model, self.regions.features(self.model.layers)
        head = self.graph.add(
            "head",
            self._plain(
                "head",
                (model.height, 8 * region.strips, 1),
                region={"STRIP0": region.strip0, **self.regions.origin},
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
                        "WARPS": HEAD_WARPS,
                    },
                },
                groups=(slices, model.nf // (HEAD_GROUP * HEAD_WARPS), 1),
                name="half",
                requires=HALF,
                storage="f16",
            ),
            group="backward",
            ports=[
                share(0, "weights", READ),
                share(1, "h", READ),
                share(2, "dl_out", READ),
                size(3, "state", READ, STATE_WORDS, label="state", dtype="u32", dump=True),
                self._map(4, "dm"),
                size(5, "partial", WRITE, slices * (model.nf + 1) * 3),
            ],
            covers=("bwd_head_x", "bwd_head_w", "bwd_sin_dm"),
            **self._work(2, 30),
        )
        self._weight_readers.append(head)
        graph.alias(self.h[-1]).to(head[1])
        graph.alias(self.dl_out).to(head[2])
        self.state, self.dm, self.head_share = head[3], head[4], head[5]
        mixed: PassSpec | None = None
        convolved: PassSpec | None = None
        for layer in reversed(range(model.layers)):
            mix = self._mix_back(layer, mixed)
            mixed = mixed or mix
            if layer > 0:
                conv = self._conv_back(layer, mixed, convolved)
                convolved = convolved or conv
        assert mixed is not None
        assert convolved is not None
        self._gather(mixed[6], convolved[5], self._stem_back(mixed))

    def _mix_back(self, layer: int, first: PassSpec | None) -> PassSpec:
        """One layer's; ``first`` is the top layer's pass, which owns what all of them write."""
        model, graph = self.model, self.graph
        region, widest = self.regions.features(layer + 1), self.regions.widest
        self.shares["MIX"] = slices = share_out(widest.strips * widest.blocks, MIX_SLICES // 2)
        mix = graph.add(
            "mix_back",
            self._matrix(
                "mix_back_matrix",
                (2 * slices, 1, 1),
                region={**self._blocks(region, slices), **region.box, "LAYER": layer},
                shape={"WARPS": MIX_WARPS, "ACROSS": MIX_ACROSS, "DOWN": MIX_DOWN},
            ),
            group="backward",
            ports=[
                share(0, "h", READ),
                share(1, "d", READ),
                share(2, "dm", READ),
                share(3, "mixes", READ),
                self._map(4, "dh") if first is None else share(4, "dh", WRITE),
                self._map(5, "dd") if first is None else share(5, "dd", WRITE),
                size(6, "partial", WRITE, model.layers * slices * model.mix_size)
                if first is None
                else share(6, "partial", WRITE),
            ],
            covers=("gemm_mixx", "unpack_dm", "gemm_mixw"),
            **self._work(5, 8 * model.nf),
        )
        for port in (4, 5, 6):
            if first is not None:
                graph.alias(first[port]).to(mix[port])
        graph.alias(self.h[layer]).to(mix[0])
        graph.alias(self.d[layer]).to(mix[1])
        graph.alias(self.dm).to(mix[2])
        graph.alias(self.mixes).to(mix[3])
        return mix

    def _conv_back(self, layer: int, mixed: PassSpec, first: PassSpec | None) -> PassSpec:
        """One layer's, from the dh and dd of ``mixed``; ``first`` owns the shares that all of them write."""
        model, graph = self.model, self.graph
        source, region = self.regions.features(layer + 1), self.regions.features(layer)
        self.shares["TAPS"] = slices = self._tiles(self.regions.widest, 51)["SLICES"]
        conv = graph.add(
            "conv_back",
            self._matrix(
                "conv_back_matrix",
                (model.nf // CONV_BACK_WARPS, slices, 1),
                window={"RADIUS": model.radius, "SPAN": SPAN, "WARPS": CONV_BACK_WARPS},
                region={**self._tiles(region, slices), **region.box, "SLICES": slices, "LAYER": layer},
                source=source.box,
            ),
            group="backward",
            ports=[
                share(0, "h", READ),
                share(1, "dh", READ),
                share(2, "dd", READ),
                share(3, "taps", READ),
                share(4, "dm", WRITE),
                size(5, "partial", WRITE, (model.layers - 1) * slices * model.nf * (model.taps + 1))
                if first is None
                else share(5, "partial", WRITE),
            ],
            covers=("bwd_dw_x", "bwd_dw_k", "bwd_sin_dm"),
            **self._work(4, 4 * model.taps),
        )
        if first is not None:
            graph.alias(first[5]).to(conv[5])
        graph.alias(self.h[layer]).to(conv[0])
        graph.alias(mixed[4]).to(conv[1])
        graph.alias(mixed[5]).to(conv[2])
        graph.alias(self.taps).to(conv[3])
        graph.alias(self.dm).to(conv[4])
        return conv

    def _stem_back(self, mixed: PassSpec) -> PortRef:
        model, region = self.model, self.regions.widest
        self.shares["STEM"] = slices = share_out(region.strips * ceil_div(region.rows, 32), 51)
        values = {"STRIP0": region.strip0, "STRIPS": region.strips, **region.box, "SLICES": slices}
        stem = self.graph.add(
            "stem_back",
            self._plain("stem_back", (32 * (model.nf // 4), 4 * slices, 1), region={**values, **self.regions.origin}),
            group="backward",
            ports=[
                share(0, "weights", READ),
                share(1, "waves", READ),
                share(2, "dh", READ),
                share(3, "dd", READ),
                size(4, "partial", WRITE, slices * model.nf * 6),
            ],
            covers=("bwd_dw_x", "bwd_dw_k", "bwd_kern", "bwd_stem"),
            **self._work(2, 60),
        )
        self._weight_readers.append(stem)
        self.graph.alias(self.waves).to(stem[1])
        self.graph.alias(mixed[4]).to(stem[2])
        self.graph.alias(mixed[5]).to(stem[3])
        return stem[4]

    def _gather(self, mix_share: PortRef, tap_share: PortRef, stem_share: PortRef) -> None:
        model, graph = self.model, self.graph
        outputs = model.layers * model.mix_size + model.nf * (model.taps + 1 + 3) + 3 * (model.nf + 1)
        reports = ceil_div(outputs, 128)
        gather = graph.add(
            "gather",
            Kernel("fused/gather.slang", {"slices": self.shares}, threads=(outputs, 1, 1), storage="f16"),
            group="backward",
            ports=[
                share(0, "state", READ),
                share(1, "weights", READ),
                share(2, "kernel", READ),
                share(3, "mix", READ),
                share(4, "taps", READ),
                share(5, "stem", READ),
                share(6, "head", READ),
                size(7, "gradient", WRITE, model.weights, label="GW"),
                size(8, "tap_gradient", WRITE, model.nf * model.taps),
                size(9, "broken", WRITE, reports, dtype="u32"),
            ],
            covers=("reduce_mixw", "bwd_kern"),
            **self.cost.copy(self.shares["MIX"] * model.layers * model.mix_size),
        )
        sources = (self.state, self.weights, self.kernel, mix_share, tap_share, stem_share, self.head_share)
        for port, source in enumerate(sources):
            graph.alias(source).to(gather[port])
        self.gradient = gather[7]
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
        graph.alias(gather[8]).to(back[1])
        graph.alias(gather[9]).to(back[2])
        graph.alias(self.loss).to(back[4])
        self.gradient_writers.append(back[3])

    # Update

    def _adam(self) -> None:
        model, graph = self.model, self.graph
        others = model.weights - model.layers * model.mix_size
        schedule = graph.add(
            "schedule",
            Kernel(
                "fused/schedule.slang",
                {
                    "cfg": {
                        "LEARNING_RATE": model.lr,
                        "WARMUP": model.warmup,
                        "EMA_DECAY": model.ema_decay,
                        "IMPROVEMENT": model.improvement,
                        "PATIENCE": model.patience,
                        "PLATEAU_FACTOR": model.plateau_factor,
                        "PLATEAU_FLOOR": model.plateau_floor,
                        "WINDOW": model.average_window,
                    }
                },
                groups=(1, 1, 1),
            ),
            group="update",
            ports=[share(0, "loss", READ), share(1, "state", READ_WRITE)],
            nbytes=128,
            flops=64,
        )
        upd = graph.add(
            "upd",
            Kernel("fused/adam.slang", threads=(others, 1, 1)),
            group="update",
            ports=[
                share(0, "weights", READ_WRITE),
                share(1, "gradient", READ),
                size(2, "adam_m", READ_WRITE, model.weights, label="adam_m", dump=True),
                size(3, "adam_v", READ_WRITE, model.weights, label="adam_v", dump=True),
                share(4, "state", READ),
            ],
            **self.cost.adam(others),
        )
        self._weight_readers.append(upd)
        self.gradient_writers.append(upd[1])
        graph.alias(self.loss).to(schedule[0])
        graph.alias(self.state).to(schedule[1], upd[4])

    def _muon(self) -> None:
        model, graph = self.model, self.graph
        mixes, parts = model.layers * model.mix_size, model.nf // 8
        momentum = graph.add(
            "muon_momentum",
            Kernel("fused/muon_momentum.slang", {"dims": {"PARTS": parts}}, groups=(model.layers * parts, 1, 1)),
            group="update",
            ports=[
                share(0, "gradient", READ),
                share(1, "state", READ),
                size(
                    2,
                    "momentum",
                    READ_WRITE,
                    mixes,
                    label="muon_b",
                    shape=(model.layers, 2 * model.nf, model.nf),
                    dump=True,
                ),
                size(3, "squares", WRITE, model.layers * parts),
            ],
            covers=("muon_prep",),
            **self.cost.copy(2 * mixes),
        )
        self.gradient_writers.append(momentum[0])
        start = graph.add(
            "muon_start",
            Kernel("fused/muon_start.slang", {"dims": {"PARTS": parts}}, threads=(mixes, 1, 1), storage="f16"),
            group="update",
            ports=[
                share(0, "momentum", READ),
                share(1, "squares", READ),
                share(2, "state", READ),
                size(3, "y", WRITE, mixes, dtype=STORE),
                size(4, "x", WRITE, mixes, dtype=STORE),
            ],
            covers=("muon_prep",),
            **self.cost.copy(mixes),
        )
        graph.alias(momentum[2]).to(start[0])
        graph.alias(momentum[3]).to(start[1])
        graph.alias(self.state).to(momentum[1], start[2])
        apply_to = self._newton_schulz_matrix(start[3], start[4])
        apply = graph.add(
            "muon_apply",
            Kernel(
                "fused/muon_apply.slang", {"cfg": {"SCALE": model.muon_scale}}, threads=(mixes, 1, 1), storage="f16"
            ),
            group="update",
            ports=[share(0, "weights", READ_WRITE), share(1, "y", READ), share(2, "state", READ)],
            **self.cost.copy(mixes),
        )
        self._weight_readers.append(apply)
        graph.alias(apply_to).to(apply[1])
        graph.alias(self.state).to(apply[2])

    def _newton_schulz_matrix(self, y: PortRef, x: PortRef) -> PortRef:
        """Five steps on every layer at once; Y and X = Yᵀ go back and forth between two pairs of buffers."""
        model, graph = self.model, self.graph
        squares, mixes, side = model.layers * model.nf**2, model.layers * model.mix_size, model.nf // 16
        pairs, scratch = [(y, x)], []
        for step in range(NEWTON_SCHULZ_STEPS):
            first = step == 0
            y, x = pairs[step % 2]
            gram = graph.add(
                "muon_gram",
                self._multiply("muon_gram_matrix", (side, side, model.layers)),
                group="update",
                ports=[
                    share(0, "x", READ),
                    size(1, "gram", WRITE, squares, dtype=STORE) if first else share(1, "gram", WRITE),
                ],
                **self.cost.matrix(squares, 2 * model.nf),
            )
            poly = graph.add(
                "muon_poly",
                self._multiply("muon_poly_matrix", (side, side, model.layers)),
                group="update",
                ports=[
                    share(0, "gram", READ),
                    size(1, "poly", WRITE, squares, dtype=STORE) if first else share(1, "poly", WRITE),
                ],
                **self.cost.matrix(squares, model.nf),
            )
            upd = graph.add(
                "muon_upd",
                self._multiply("muon_upd_matrix", (side, 2 * side, model.layers)),
                group="update",
                ports=[
                    share(0, "y", READ),
                    share(1, "poly", READ),
                    size(2, "next_y", WRITE, mixes, dtype=STORE) if first else share(2, "next_y", WRITE),
                    size(3, "next_x", WRITE, mixes, dtype=STORE) if first else share(3, "next_x", WRITE),
                ],
                **self.cost.matrix(mixes, model.nf),
            )
            if first:
                scratch = [gram[1], poly[1]]
                pairs.append((upd[2], upd[3]))
            else:
                graph.alias(scratch[0]).to(gram[1])
                graph.alias(scratch[1]).to(poly[1])
                graph.alias(pairs[(step + 1) % 2][0]).to(upd[2])
                graph.alias(pairs[(step + 1) % 2][1]).to(upd[3])
            graph.alias(x).to(gram[0])
            graph.alias(scratch[0]).to(poly[0])
            graph.alias(y).to(upd[0])
            graph.alias(scratch[1]).to(upd[1])
        return pairs[NEWTON_SCHULZ_STEPS % 2][0]

    def _multiply(self, name: str, groups: tuple[int, int, int]) -> Kernel:
        return Kernel(f"fused/{name}.slang", groups=groups, name="matrix", requires=MATRIX, storage="f16")

    def _record(self) -> PassSpec:
        model = self.model
        record = self.graph.add(
            "wavg_acc",
            Kernel("fused/record.slang", threads=(model.weights, 1, 1)),
            group="average",
            ports=[share(0, "weights", READ), ring_port(model), share(2, "state", READ)],
            **self.cost.copy(model.weights),
        )
        self.graph.alias(self.state).to(record[2])
        return record

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


def is_fusable(model: ModelConfig) -> bool:
    """Whether the fused kernels suit this model: tiles fit shared memory, and nothing beyond the domain plays a part."""
    return (
        model.nf == 128 and 1 <= model.radius <= 4 and model.layers >= 2 and model.halo >= model.radius * model.layers
    )


def build(model: ModelConfig) -> list[Graph]:
    """The plans of a ConvSIREN, the preferred one first."""
    plans: list[type[Reference]] = [Fused, Reference] if is_fusable(model) else [Reference]
    return [plan(model).build() for plan in plans]
