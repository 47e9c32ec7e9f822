"""Forward passes of the scalar fused plan: what the kernels multiply by, stem, layers and head."""

from __future__ import annotations

from convtrain.graph.builder import READ, WRITE, Kernel, PassSpec, PortRef, UniformSpec, size
from cook.recipes.fused_scalar.base import OUTPUTS, TILE, WALK, ScalarBase
from cook.recipes.fused_scalar.boxes import QUAD
from cook.recipes.reference.base import ceil_div, link
from cook.recipes.reference.forward import Forward as ReferenceForward
from cook.recipes.reference.matrix import SUBGROUP


class Forward(ScalarBase, ReferenceForward):
    """Two passes a layer, but one for layer 0, whose convolution the stem brings along."""

    def _forward(self) -> None:
        self._kern()
        self._operands()
        stem = self._plane_waves()
        self.features.append(stem[2])
        self.convolved.append(stem[3])
        for layer in range(self.model.layers):
            if layer > 0:
                self.convolved.append(self._conv(layer))
            self.features.append(self._mix(layer))
        self._head()

    def _operands(self) -> None:
        model = self.model
        mixes, taps = 2 * model.layers * model.mix_size, QUAD * ceil_div(model.taps, QUAD) * model.nf
        operands = self._add_reader(
            "operands",
            Kernel("fused/scalar/operands.slang", threads=((mixes + taps) // QUAD + model.nf, 1, 1)),
            "forward",
            [
                link(1, "kernel", READ, self.kernel),
                size(2, "mixes", WRITE, mixes),
                size(3, "taps", WRITE, taps),
                size(4, "heads", WRITE, QUAD * model.nf),
                size(5, "waves", WRITE, 2 * model.nf),
            ],
            self.cost.copy(mixes + taps),
            infer=True,
            covers=("pack_mix", "pack_wmix"),
        )
        self.mixes, self.taps, self.heads, self.waves = (operands[number] for number in range(2, 6))

    def _plane_waves(self) -> PassSpec:
        box = self.boxes.widest
        return self._add_reader(
            "stem",
            Kernel(
                "fused/scalar/stem.slang",
                {
                    "geometry": self.boxes.geometry,
                    "box": box.values,
                    "origin": self.boxes.origin,
                    "walk": {"ROWS": WALK},
                    "lanes": self.own_lanes,
                },
                groups=(self.model.nf // self.lanes, box.strips, ceil_div(box.rows, WALK)),
            ),
            "forward",
            [link(1, "waves", READ, self.waves), self._map(2, "h"), self._map(3, "d")],
            self._work(2, 100),
            infer=True,
            uniform=UniformSpec(controls={"offset_x": "offset_x", "offset_y": "offset_y"}),
            covers=("stem_train", "dw"),
        )

    def _conv(self, layer: int) -> PortRef:
        model, box = self.model, self.boxes.features(layer + 1)
        conv = self._add_reader(
            "conv",
            self._kernels(
                "conv",
                (model.nf // self.lanes, box.strips, ceil_div(box.rows, WALK)),
                geometry=self.boxes.geometry,
                walk={"ROWS": WALK},
                lanes=self.own_lanes,
            ),
            "forward",
            [link(1, "taps", READ, self.taps), link(2, "h", READ, self.features[layer]), self._map(3, "d")],
            self._work(2, 2 * model.taps),
            infer=True,
            uniform=self._part(box),
            covers=("dw",),
        )
        return conv[3]

    def _mix(self, layer: int) -> PortRef:
        model, box = self.model, self.boxes.features(layer + 1)
        outputs = self._eights(OUTPUTS)
        mix = self._add(
            "mix",
            self._products(
                "mix",
                (ceil_div(box.quads, TILE), box.rows, model.nf // (SUBGROUP * outputs)),
                outputs,
                geometry=self.boxes.geometry,
            ),
            "forward",
            [
                link(0, "h", READ, self.features[layer]),
                link(1, "d", READ, self.convolved[layer]),
                link(2, "mixes", READ, self.mixes),
                self._map(3, "next"),
            ],
            self._work(3, 4 * model.nf),
            infer=True,
            uniform=self._part(box, matrix=layer * model.mix_size // 2),
            covers=("gemm_mix", "mix_unpack"),
        )
        return mix[3]

    def _head(self) -> None:
        box = self.boxes.features(self.model.layers)
        head = self._add_reader(
            "head",
            self._kernels(
                "head",
                (ceil_div(box.size, 32), 1, 1),
                geometry=self.boxes.geometry,
                box=box.values,
                origin=self.boxes.origin,
            ),
            "forward",
            [
                link(1, "heads", READ, self.heads),
                link(2, "h", READ, self.features[-1]),
                size(3, "image", WRITE, self.image, label="Out", shape=self.image_shape),
            ],
            self._work(1, 6),
            infer=True,
        )
        self.output = head[3]
