"""The ConvSIREN as a pass list: plan ``reference``, scalar and fp32, the oracle of every other plan.

29 + 13·LAYERS passes, in the order they run. Feature buffers are feature-major, ``[feature][padded pixel]``. A port's
number is its binding in the shader; its name is the shader's variable.
"""

from __future__ import annotations

from collections.abc import Sequence

from convtrain.graph.builder import (
    READ,
    READ_WRITE,
    WRITE,
    Graph,
    Kernel,
    PassSpec,
    PortRef,
    PortSpec,
    UniformSpec,
    data,
    share,
    size,
)
from convtrain.graph.types import Access
from cook.model import SSIM_TAPS, ModelConfig
from cook.recipes.cost import Cost, Work

STRIP = 8  # rows of a depthwise or SSIM strip (slang/strip.slang, slang/ssim_window.slang)
LANES = 64  # workgroup size of the reductions (slang/reduce.slang)
LOSS_PIXELS = 8 * LANES  # pixels that one workgroup of lossgrad takes
TAP_BLOCKS = 5
NEWTON_SCHULZ_STEPS = 5
MUON_TILE = 4
Scratch = tuple[str, Access, int]
"""A port of a backward pass: name, access, and its elements where the topmost layer owns it for all layers."""

LOSS_FIELDS = ("loss", "mse", "chroma", "grad", "ssim")


def build(model: ModelConfig) -> Sequence[Graph]:
    """The plans of the recipe."""
    return [Reference(model).build()]


class Reference:
    """Builds plan ``reference`` group by group; the attributes are the ports that later groups bind to."""

    def __init__(self, model: ModelConfig) -> None:
        self.model = model
        self.cost = Cost(model)
        self.graph = Graph("reference")
        self.features = model.nf * model.padded_pixels  # elements of one feature buffer
        self.image = 3 * model.height * model.width
        self.image_shape = (model.height, model.width, 3)
        self.cats: list[PortRef] = []  # of each layer: h above, d below
        self.slopes: list[PortRef] = []  # cos of each layer's m
        self.gradient_writers: list[PortRef] = []

    def build(self) -> Graph:
        self._forward()
        self._loss()
        self._backward()
        self._adam()
        self._muon()
        self._average()
        self.graph.bcast(self.weights, self._weight_readers, port=0)
        self.graph.alias(self.gradient).to(*self.gradient_writers)
        self.graph.set_roles(
            weights=self.weights,
            gradient=self.gradient,
            target=self.target,
            output=self.output,
            loss=self.loss,
            loss_fields=LOSS_FIELDS,
            state="state",
            average=[self.graph.passes[-1]],
            average_window=model_window(self.model),
        )
        return self.graph

    # Helpers

    def _pixels(self, source: str, features: int = 8, **values: int) -> Kernel:
        """A kernel with one thread for each pixel of the domain and ``features`` features."""
        groups = (-(-self.model.pixels // LANES), self.model.nf // features, 1)
        return Kernel(source, values={"dims": values} if values else {}, groups=groups)

    def _strips(self, source: str) -> Kernel:
        """A kernel with one thread for each strip of one feature."""
        model = self.model
        strips = -(-model.domain_height // STRIP) * model.domain_width
        return Kernel(source, groups=(-(-strips // LANES), model.nf, 1))

    def _gemm(self, reduction: int, outputs: int) -> Kernel:
        tile = gemm_tile(outputs)
        return Kernel(
            "gemm.slang",
            values={"dims": {"REDUCTION": reduction, "TILE": tile}},
            groups=(self.model.padded_pixels // 128, outputs // tile, 1),
        )

    def _pack(self, layer: int, reduction: int, outputs: int, reduction_stride: int, output_stride: int) -> Kernel:
        return Kernel(
            "pack.slang",
            values={
                "dims": {
                    "REDUCTION": reduction,
                    "OUTPUTS": outputs,
                    "TILE": gemm_tile(outputs),
                    "OFFSET": self.model.slot(f"mix.{layer}").offset,
                    "REDUCTION_STRIDE": reduction_stride,
                    "OUTPUT_STRIDE": output_stride,
                }
            },
            threads=(reduction * outputs, 1, 1),
        )

    # Forward

    def _forward(self) -> None:
        model, graph, cost = self.model, self.graph, self.cost
        kern = graph.add(
            "kern",
            Kernel("kern.slang", threads=(model.nf * model.taps, 1, 1)),
            group="forward",
            infer=True,
            ports=[
                data(0, "weights", READ, model.weights, "weights", label="WBuf", dump=True),
                size(
                    1,
                    "kernel",
                    WRITE,
                    model.nf * model.taps,
                    label="KBuf",
                    shape=(model.nf, model.ks, model.ks),
                ),
            ],
            **cost.kern(),
        )
        stem = graph.add(
            "stem_train",
            self._pixels("stem_train.slang"),
            group="forward",
            infer=True,
            ports=[
                share(0, "weights", READ),
                size(1, "h", WRITE, 2 * self.features),
                size(2, "slope", WRITE, self.features),
            ],
            uniform=UniformSpec(controls={"offset_x": "offset_x", "offset_y": "offset_y"}),
            **cost.stem(),
        )
        self.weights, self.kernel, self.stem_slope = kern[0], kern[1], stem[2]
        self._weight_readers = [stem]
        h = stem[1]
        for layer in range(model.layers):
            h = self._layer(layer, h)
        self.h_last = h
        head = graph.add(
            "head",
            Kernel("head.slang", threads=(model.height * model.width, 1, 1)),
            group="forward",
            infer=True,
            ports=[
                share(0, "weights", READ),
                share(1, "h", READ),
                size(2, "output", WRITE, self.image, label="Out", shape=self.image_shape),
            ],
            **cost.head(),
        )
        graph.alias(h).to(head[1])
        self._weight_readers.append(head)
        self.output = head[2]

    def _layer(self, layer: int, h: PortRef) -> PortRef:
        """d, cat·M and the sine of one layer; gives the port of the next h."""
        model, graph, cost = self.model, self.graph, self.cost
        last = layer == model.layers - 1
        dw = graph.add(
            "dw",
            self._strips("dw.slang"),
            group="forward",
            infer=True,
            ports=[share(0, "weights", READ), share(1, "kernel", READ), share(2, "cat", READ_WRITE)],
            **cost.depthwise(),
        )
        pack = graph.add(
            "pack_mix",
            self._pack(layer, 2 * model.nf, model.nf, model.nf, 1),
            group="forward",
            infer=True,
            ports=[share(0, "weights", READ), size(1, "packed", WRITE, model.mix_size)],
            **cost.copy(model.mix_size),
        )
        gemm = graph.add(
            "gemm_mix",
            self._gemm(2 * model.nf, model.nf),
            group="forward",
            infer=True,
            ports=[
                share(0, "packed", READ),
                share(1, "operand", READ),
                size(2, "product", WRITE, self.features) if layer == 0 else share(2, "product", WRITE),
            ],
            **cost.gemm(),
        )
        unpack = graph.add(
            "mix_unpack",
            self._pixels("mix_unpack.slang"),
            group="forward",
            infer=True,
            ports=[
                share(0, "product", READ),
                size(1, "slope", WRITE, self.features),
                size(2, "h", WRITE, self.features if last else 2 * self.features),
            ],
            **cost.pointwise(reads=1, writes=2),
        )
        graph.alias(self.kernel).to(dw[1])
        graph.alias(h).to(dw[2], gemm[1])
        graph.alias(pack[1]).to(gemm[0])
        if layer == 0:
            self.product = gemm[2]
        else:
            graph.alias(self.product).to(gemm[2])
        graph.alias(self.product).to(unpack[0])
        self._weight_readers += [dw, pack]
        self.cats.append(h)
        self.slopes.append(unpack[1])
        return unpack[2]

    # Loss

    def _loss(self) -> None:
        model, graph, cost = self.model, self.graph, self.cost
        factors = LossFactors(model)
        loss_groups = -(-model.height * model.width // LOSS_PIXELS)
        windows = max(0, model.height - SSIM_TAPS + 1), max(0, model.width - SSIM_TAPS + 1)
        window_groups = max(1, -(-(-(-windows[0] // STRIP) * windows[1]) // LANES))
        pixel_groups = -(-(-(-model.height // STRIP) * model.width) // LANES)
        lossgrad = graph.add(
            "lossgrad",
            Kernel("lossgrad.slang", values={"cfg": factors.gradient()}, groups=(loss_groups, 1, 1)),
            group="loss",
            ports=[
                share(0, "output", READ),
                data(1, "target", READ, self.image, "target", label="target", shape=self.image_shape),
                size(2, "dl_out", WRITE, self.image, label="DlOut", shape=self.image_shape),
                size(3, "partials", WRITE, 4 * loss_groups),
            ],
            **cost.lossgrad(),
        )
        forward = graph.add(
            "ssim_fwd",
            Kernel("ssim_fwd.slang", values={"dims": {"GROUPS": window_groups}}, groups=(window_groups, 3, 1)),
            group="loss",
            ports=[
                share(0, "output", READ),
                share(1, "target", READ),
                size(2, "slopes", WRITE, 3 * self.image),
                size(3, "partials", WRITE, 3 * window_groups),
            ],
            **cost.ssim_forward(),
        )
        add = graph.add(
            "ssim_add",
            Kernel(
                "ssim_add.slang",
                values={
                    "dims": {
                        "GROUPS": pixel_groups,
                        "LOSS_PARTIALS": loss_groups,
                        "SSIM_PARTIALS": 3 * window_groups,
                    },
                    "cfg": factors.terms(),
                },
                groups=(pixel_groups + 1, 3, 1),
            ),
            group="loss",
            ports=[
                share(0, "output", READ),
                share(1, "target", READ),
                share(2, "dl_out", READ_WRITE),
                share(3, "slopes", READ),
                share(4, "loss_partials", READ),
                share(5, "ssim_partials", READ),
                size(6, "loss", WRITE, len(LOSS_FIELDS), label="loss", host=True),
            ],
            **cost.ssim_add(),
        )
        graph.bcast(self.output, [lossgrad, forward, add], port=0)
        graph.bcast(lossgrad[1], [forward, add])
        graph.alias(lossgrad[2]).to(add[2])
        graph.alias(forward[2]).to(add[3])
        graph.alias(lossgrad[3]).to(add[4])
        graph.alias(forward[3]).to(add[5])
        self.target, self.dl_out, self.loss = lossgrad[1], lossgrad[2], add[6]

    # Backward

    def _backward(self) -> None:
        model, graph, cost = self.model, self.graph, self.cost
        head_x = graph.add(
            "bwd_head_x",
            self._pixels("bwd_head_x.slang"),
            group="backward",
            ports=[share(0, "weights", READ), share(1, "dl_out", READ), size(2, "dh", WRITE, self.features)],
            **cost.head(),
        )
        head_w = graph.add(
            "bwd_head_w",
            Kernel("bwd_head_w.slang", groups=(model.nf + 1, 1, 1)),
            group="backward",
            ports=[
                share(0, "h", READ),
                share(1, "dl_out", READ),
                size(2, "gradient", WRITE, model.weights, label="GW"),
            ],
            **cost.head(),
        )
        graph.bcast(self.dl_out, [head_x, head_w], port=1)
        graph.alias(self.h_last).to(head_w[0])
        self._weight_readers.append(head_x)
        self.gradient, self.dh = head_w[2], head_x[2]
        first: list[PassSpec] = []  # the topmost layer's passes own what the layers share
        for layer in reversed(range(model.layers)):
            passes = self._backward_layer(layer, first)
            first = first or passes
        stem = graph.add(
            "bwd_stem",
            Kernel("bwd_stem.slang", groups=(model.nf, 1, 1)),
            group="backward",
            ports=[share(0, "dh", READ), share(1, "slope", READ), share(2, "gradient", WRITE)],
            **cost.pointwise(reads=2, writes=0),
        )
        graph.alias(self.dh).to(stem[0])
        graph.alias(self.stem_slope).to(stem[1])
        self.gradient_writers.append(stem[2])

    def _backward_layer(self, layer: int, first: list[PassSpec]) -> list[PassSpec]:
        model, graph, cost = self.model, self.graph, self.cost
        nf = model.nf

        def add(position: int, name: str, kernel: Kernel, ports: list[Scratch], work: Work) -> PassSpec:
            """Add a pass; scratch ports (an element count) are owned by the first layer, shared by the others."""
            specs = []
            for number, (port, access, elements) in enumerate(ports):
                owns = elements and not first
                specs.append(size(number, port, access, elements) if owns else share(number, port, access))
            made = graph.add(name, kernel, group="backward", ports=specs, **work)
            for number, (_, _, elements) in enumerate(ports):
                if elements and first:
                    graph.alias(first[position][number]).to(made[number])
            return made

        lanes = next(n for n in (64, 32, 16, 8) if nf % n == 0)
        sin = add(
            0,
            "bwd_sin_dm",
            self._pixels("bwd_sin_dm.slang"),
            [
                ("dh", READ, 0),
                ("slope", READ, 0),
                ("dm", WRITE, self.features),
                ("dm_by_pixel", WRITE, self.features),
            ],
            cost.pointwise(reads=2, writes=2),
        )
        pack = add(
            1,
            "pack_wmix",
            self._pack(layer, nf, 2 * nf, 1, nf),
            [("weights", READ, 0), ("packed", WRITE, model.mix_size)],
            cost.copy(model.mix_size),
        )
        mixx = add(
            2,
            "gemm_mixx",
            self._gemm(nf, 2 * nf),
            [("packed", READ, 0), ("operand", READ, 0), ("product", WRITE, 2 * self.features)],
            cost.gemm(),
        )
        unpack = add(
            3,
            "unpack_dm",
            Kernel("unpack_dm.slang", groups=(nf, model.slices, 1)),
            [("dcat", READ, 0), ("bias_partials", WRITE, model.slices * nf)],
            cost.pointwise(reads=1, writes=0),
        )
        mixw = add(
            4,
            "gemm_mixw",
            Kernel(
                "gemm_mixw.slang",
                values={"dims": {"LANES": lanes}},
                groups=(nf // lanes, 2 * nf // 8, model.slices),
            ),
            [("cat", READ, 0), ("dm_by_pixel", READ, 0), ("partials", WRITE, model.slices * model.mix_size)],
            cost.gemm(),
        )
        reduce = add(
            5,
            "reduce_mixw",
            Kernel(
                "reduce_mixw.slang",
                values={"dims": {"OFFSET": model.slot(f"mix.{layer}").offset}},
                threads=(model.mix_size, 1, 1),
            ),
            [("partials", READ, 0), ("gradient", WRITE, 0)],
            cost.copy(model.slices * model.mix_size),
        )
        dw_x = add(
            6,
            "bwd_dw_x",
            self._strips("bwd_dw_x.slang"),
            [("kernel", READ, 0), ("dcat", READ, 0), ("dh", WRITE, 0)],
            cost.depthwise(),
        )
        dw_k = add(
            7,
            "bwd_dw_k",
            Kernel(
                "bwd_dw_k.slang",
                values={"dims": {"BLOCKS": TAP_BLOCKS}},
                groups=(nf, model.ks, TAP_BLOCKS),
            ),
            [("cat", READ, 0), ("dcat", READ, 0), ("tap_partials", WRITE, TAP_BLOCKS * nf * model.taps)],
            cost.depthwise(),
        )
        kern = add(
            8,
            "bwd_kern",
            Kernel(
                "bwd_kern.slang",
                values={"dims": {"BLOCKS": TAP_BLOCKS, "FIRST": 2 if first else 1}},
                groups=(nf + model.kn, 1, 1),
            ),
            [
                ("weights", READ, 0),
                ("tap_partials", READ, 0),
                ("bias_partials", READ, 0),
                ("gradient", READ_WRITE, 0),
            ],
            cost.kern(),
        )
        graph.alias(self.dh).to(sin[0], dw_x[2])
        graph.alias(self.slopes[layer]).to(sin[1])
        graph.alias(pack[1]).to(mixx[0])
        graph.alias(sin[2]).to(mixx[1])
        graph.alias(mixx[2]).to(unpack[0], dw_x[1], dw_k[1])
        graph.alias(self.cats[layer]).to(mixw[0], dw_k[0])
        graph.alias(sin[3]).to(mixw[1])
        graph.alias(mixw[2]).to(reduce[0])
        graph.alias(self.kernel).to(dw_x[0])
        graph.alias(dw_k[2]).to(kern[1])
        graph.alias(unpack[1]).to(kern[2])
        self._weight_readers += [pack, kern]
        self.gradient_writers += [reduce[1], kern[3]]
        return [sin, pack, mixx, unpack, mixw, reduce, dw_x, dw_k, kern]

    # Update

    def _adam(self) -> None:
        model, graph, cost = self.model, self.graph, self.cost
        others = model.weights - model.layers * model.mix_size
        upd = graph.add(
            "upd",
            Kernel("upd.slang", threads=(others, 1, 1)),
            group="update",
            ports=[
                share(0, "weights", READ_WRITE),
                share(1, "gradient", READ),
                size(2, "adam_m", READ_WRITE, model.weights, label="adam_m", dump=True),
                size(3, "adam_v", READ_WRITE, model.weights, label="adam_v", dump=True),
                share(4, "loss", READ),
            ],
            uniform=UniformSpec(
                controls={name: name for name in ("lr", "beta1_correction", "beta2_correction")},
                dump=True,
                label="state",
                initial={"plateau_scale": 1.0, "loss_scale": 1.0},
            ),
            **cost.adam(others),
        )
        self._weight_readers.append(upd)
        self.gradient_writers.append(upd[1])
        graph.alias(self.loss).to(upd[4])

    def _muon(self) -> None:
        model, graph, cost = self.model, self.graph, self.cost
        mixes = model.layers * model.mix_size
        prep = graph.add(
            "muon_prep",
            Kernel("muon_prep.slang", groups=(model.layers, 1, 1)),
            group="update",
            ports=[
                share(0, "gradient", READ),
                share(1, "loss", READ),
                size(
                    2,
                    "momentum",
                    READ_WRITE,
                    mixes,
                    label="muon_b",
                    shape=(model.layers, 2 * model.nf, model.nf),
                    dump=True,
                ),
                size(3, "y", WRITE, mixes),
            ],
            **cost.copy(2 * mixes),
        )
        self.gradient_writers.append(prep[0])
        graph.alias(self.loss).to(prep[1])
        y = self._newton_schulz(prep[3])
        apply = graph.add(
            "muon_apply",
            Kernel("muon_apply.slang", values={"cfg": {"SCALE": model.muon_scale}}, threads=(mixes, 1, 1)),
            group="update",
            ports=[share(0, "weights", READ_WRITE), share(1, "y", READ)],
            uniform=UniformSpec(controls={"lr": "lr"}),
            **cost.copy(mixes),
        )
        self._weight_readers.append(apply)
        graph.alias(y).to(apply[1])

    def _newton_schulz(self, y: PortRef) -> PortRef:
        """Five steps on every layer at once, ping-pong between two buffers; gives the port of the last."""
        model, graph, cost = self.model, self.graph, self.cost
        squares, mixes = model.layers * model.nf * model.nf, model.layers * model.mix_size
        square = Kernel("muon_gram.slang", groups=(-(-model.nf * model.nf // (MUON_TILE * LANES)), model.layers, 1))
        poly_kernel = Kernel("muon_poly.slang", groups=square.groups)
        upd_kernel = Kernel(
            "muon_upd.slang", groups=(-(-2 * model.nf * model.nf // (MUON_TILE * LANES)), model.layers, 1)
        )
        other: PortRef | None = None
        gram_port: PortRef | None = None
        poly_port: PortRef | None = None
        for _ in range(NEWTON_SCHULZ_STEPS):
            gram = graph.add(
                "muon_gram",
                square,
                group="update",
                ports=[
                    share(0, "y", READ),
                    size(1, "gram", WRITE, squares) if gram_port is None else share(1, "gram", WRITE),
                ],
                **cost.matrix(squares, 2 * model.nf),
            )
            poly = graph.add(
                "muon_poly",
                poly_kernel,
                group="update",
                ports=[
                    share(0, "gram", READ),
                    size(1, "poly", WRITE, squares) if poly_port is None else share(1, "poly", WRITE),
                ],
                **cost.matrix(squares, model.nf),
            )
            upd = graph.add(
                "muon_upd",
                upd_kernel,
                group="update",
                ports=[
                    share(0, "y", READ),
                    share(1, "poly", READ),
                    size(2, "next", WRITE, mixes) if other is None else share(2, "next", WRITE),
                ],
                **cost.matrix(mixes, model.nf),
            )
            if gram_port is None or poly_port is None:
                gram_port, poly_port = gram[1], poly[1]
            else:
                graph.alias(gram_port).to(gram[1])
                graph.alias(poly_port).to(poly[1])
            graph.alias(y).to(gram[0], upd[0])
            graph.alias(gram_port).to(poly[0])
            graph.alias(poly_port).to(upd[1])
            if other is None:
                other = upd[2]
            else:
                graph.alias(other).to(upd[2])
            y, other = other, y
        return y

    # Average

    def _record(self) -> PassSpec:
        model = self.model
        return self.graph.add(
            "wavg_acc",
            Kernel("wavg_acc.slang", threads=(model.weights, 1, 1)),
            group="average",
            ports=[share(0, "weights", READ), ring_port(model)],
            uniform=UniformSpec(controls={"ring_slot": "slot"}),
            **self.cost.copy(model.weights),
        )

    def _average(self) -> None:
        model, graph, cost = self.model, self.graph, self.cost
        slots = model_window(model)
        record = self._record()
        apply = graph.add(
            "wavg_apply",
            Kernel("wavg_apply.slang", values={"cfg": {"SLOTS": slots}}, threads=(model.weights, 1, 1)),
            group="average",
            skip=True,
            ports=[share(0, "weights", WRITE), share(1, "ring", READ)],
            uniform=UniformSpec(controls={"ring_first": "first", "ring_count": "count"}),
            **cost.copy(slots * model.weights),
        )
        graph.alias(record[1]).to(apply[1])
        self._weight_readers += [record, apply]


class LossFactors:
    """What the loss terms are divided by and weighted with, as the shaders take them."""

    def __init__(self, model: ModelConfig) -> None:
        height, width = model.height, model.width
        self._model = model
        self.mse = 1 / (3 * height * width)
        self.chroma = 1 / (2 * height * width)
        self.vertical = 1 / (3 * (height - 1) * width) if height > 1 else 0.0
        self.horizontal = 1 / (3 * height * (width - 1)) if width > 1 else 0.0
        windows = (height - SSIM_TAPS + 1) * (width - SSIM_TAPS + 1)
        self.ssim = 1 / (3 * windows) if model.has_ssim else 0.0

    def gradient(self) -> dict[str, float]:
        """For lossgrad: each term's weight in the gradient, without the 2 of the square."""
        lambda_g = self._model.lambda_g / self._model.den
        return {
            "MSE": self.mse,
            "CHROMA": self._model.lambda_c * self.chroma,
            "VERTICAL": lambda_g * self.vertical,
            "HORIZONTAL": lambda_g * self.horizontal,
        }

    def terms(self) -> dict[str, float]:
        """For ssim_add: the means, and the weights of the terms."""
        return {
            "MSE": self.mse,
            "CHROMA": self.chroma,
            "VERTICAL": self.vertical,
            "HORIZONTAL": self.horizontal,
            "SSIM": self.ssim,
            "LAMBDA_C": self._model.lambda_c,
            "LAMBDA_G": self._model.lambda_g / self._model.den,
            "LAMBDA_S": self._model.lambda_s if self._model.has_ssim else 0.0,
        }


def gemm_tile(outputs: int) -> int:
    """Outputs of one thread: 16 where they divide evenly, else 8 (NF is a multiple of 8)."""
    return 16 if outputs % 16 == 0 else 8


def model_window(model: ModelConfig) -> int:
    """Records of the weight ring."""
    return model.average_window


def ring_port(model: ModelConfig) -> PortSpec:
    """Port 1 of the pass that records weights: the ring of the last epochs' weights."""
    slots = model_window(model)
    shape = (slots, model.weights)
    return size(1, "ring", WRITE, slots * model.weights, label="weight_ring", shape=shape, dump=True)
