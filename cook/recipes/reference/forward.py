"""Forward passes, from the weights to Out: the inference chain."""

from __future__ import annotations

from convtrain.graph.builder import READ, READ_WRITE, WRITE, Kernel, PortRef, UniformSpec, data, size
from convtrain.graph.types import STORE
from cook.recipes.reference.base import PACK, Base, Scratch, ceil_div, link
from cook.recipes.reference.matrix import product

HEAD_PIXELS = 128  # pixels that a workgroup of the head takes
STEM_PIXELS = 4  # pixels that an invocation of the stem takes


class Forward(Base):
    """Kernel, stem, layers and head. ``z`` are the phases of the stem, ``m`` of each layer, ``h`` the last features."""

    z: PortRef
    h: PortRef

    def _forward(self) -> None:
        self.cats: list[PortRef] = []  # of each layer: h in the first NF planes, d in the others
        self.m: list[PortRef] = []
        self._kern()
        self.h = self._stem()
        for layer in range(self.model.layers):
            self.h = self._layer(layer, self.h)
        self._head()

    def _kern(self) -> None:
        model = self.model
        taps = model.nf * model.taps
        kern = self._add(
            "kern",
            Kernel("kern.slang", threads=(taps, 1, 1)),
            "forward",
            [
                data(0, "weights", READ, model.weights, "weights", label="WBuf", dump=True),
                size(1, "kernel", WRITE, taps, label="KBuf", shape=(model.nf, model.ks, model.ks)),
            ],
            self.cost.kern(),
            infer=True,
        )
        self.weights, self.kernel = kern[0], kern[1]

    def _stem(self) -> PortRef:
        """Gives the port of h₀, which is also that of cat₀."""
        model = self.model
        stem = self._add_reader(
            "stem_train",
            Kernel("stem.slang", threads=(model.padded_pixels // STEM_PIXELS, model.nf // PACK, 1)),
            "forward",
            [size(1, "h", WRITE, 2 * self.planes), size(2, "z", WRITE, self.planes, dtype=STORE)],
            self.cost.stem(),
            infer=True,
            uniform=UniformSpec(controls={"offset_x": "offset_x", "offset_y": "offset_y"}),
        )
        self.z = stem[2]
        return stem[1]

    def _layer(self, layer: int, cat: PortRef) -> PortRef:
        """d, cat·M and the sine of one layer; gives the port of the next h, which is also that of the next cat."""
        model, cut = self.model, self.cut
        self._add_reader(
            "dw",
            Kernel("dw.slang", values={"strip": self._strip()}, threads=(self._strips(), model.nf, 1)),
            "forward",
            [link(1, "kernel", READ, self.kernel), link(2, "cat", READ_WRITE, cat)],
            self.cost.depthwise(),
            infer=True,
        )
        pack = self._add_reader(
            "pack_mix",
            self._pack(layer, inner=2 * model.nf, row_pitch=1, inner_pitch=model.nf),
            "forward",
            [Scratch(1, "panels", WRITE, model.mix_size)],
            self.cost.copy(model.mix_size),
            infer=True,
        )
        gemm = self._add(
            "gemm_mix",
            product(model, cut, inner=2 * model.nf, rows=model.nf),
            "forward",
            [
                link(0, "panels", READ, pack[1]),
                link(1, "planes", READ, cat),
                Scratch(2, "product", WRITE, self.planes),
            ],
            self.cost.gemm(),
            infer=True,
        )
        last = layer == model.layers - 1
        unpack = self._add(
            "mix_unpack",
            Kernel("mix_unpack.slang", threads=(model.padded_pixels, model.nf // PACK, 1)),
            "forward",
            [
                link(0, "product", READ, gemm[2]),
                size(1, "m", WRITE, self.planes, dtype=STORE),
                size(2, "h", WRITE, self.planes if last else 2 * self.planes),
            ],
            self.cost.pointwise(reads=1, writes=2),
            infer=True,
        )
        self.cats.append(cat)
        self.m.append(unpack[1])
        return unpack[2]

    def _head(self) -> None:
        model = self.model
        head = self._add_reader(
            "head",
            Kernel("head.slang", groups=(ceil_div(model.height * model.width, HEAD_PIXELS), 1, 1)),
            "forward",
            [link(1, "h", READ, self.h), size(2, "output", WRITE, self.image, label="Out", shape=self.image_shape)],
            self.cost.head(),
            infer=True,
        )
        self.output = head[2]

    def _strip(self) -> dict[str, int]:
        return {"COLUMNS": self.cut.columns, "WALK": self.cut.walk}

    def _strips(self) -> int:
        """Invocations that a depthwise kernel needs for one feature."""
        model, cut = self.model, self.cut
        return ceil_div(model.domain_width, cut.columns) * ceil_div(model.domain_height, cut.walk)

    def _pack(self, layer: int, *, inner: int, row_pitch: int, inner_pitch: int) -> Kernel:
        """M_l, or its transpose, in panels: element (k, row) of the product lies at k·inner_pitch + row·row_pitch."""
        model = self.model
        dims = {
            "MATRIX": model.slot(f"mix.{layer}").offset,
            "SIZE": model.mix_size,
            "K": inner,
            "ROW_PITCH": row_pitch,
            "K_PITCH": inner_pitch,
        }
        return Kernel("pack.slang", values={"dims": dims}, threads=(model.mix_size, 1, 1))
