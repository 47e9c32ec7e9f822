"""Backward passes of the scalar fused plan, from DlOut to the gradient of every weight."""

from __future__ import annotations

from convtrain.graph.builder import READ, WRITE, Kernel, PassSpec, PortRef, size
from cook.recipes.fused_scalar.base import OUTPUTS, TILE, WALK, ScalarBase, share_out
from cook.recipes.fused_scalar.boxes import QUAD
from cook.recipes.reference.base import Scratch, ceil_div, link
from cook.recipes.reference.matrix import SUBGROUP

SLICES = 16  # shares of a gradient at most
LANES = 64  # workgroup size of gather_mix
ROW_EIGHTS = 2  # eights of rows of h that an invocation of mix_grad takes at most, and as many of d


class Backward(ScalarBase):
    """Three passes a layer, but two for layer 0, whose convolution stem_back takes along; then the shares are added."""

    def _backward(self) -> None:
        head_share = self._head_back()
        tap_share: PortRef | None = None
        for layer in reversed(range(self.model.layers)):
            mix_share = self._mix_grad(layer)
            mix = self._mix_back(layer)
            if layer > 0:
                tap_share = self._conv_back(layer, mix)
        stem_share = self._stem_back(mix)
        self._gather(mix_share, tap_share or stem_share, stem_share, head_share)

    def _head_back(self) -> PortRef:
        model, box = self.model, self.boxes.features(self.model.layers)
        self.shares["HEAD"] = slices = share_out(box.size, SLICES)
        head = self._add(
            "head_back",
            self._kernels(
                "head_back",
                (model.nf // self.lanes, slices, 1),
                geometry=self.boxes.geometry,
                lanes=self.own_lanes,
                box=box.values,
                origin=self.boxes.origin,
                block={"SLICES": slices},
            ),
            "backward",
            [
                link(0, "heads", READ, self.heads),
                link(1, "h", READ, self.features[-1]),
                link(2, "slopes", READ, self.slopes),
                self._map(3, "dm"),
                size(4, "partial", WRITE, slices * (model.nf + 1) * 3),
            ],
            self._work(2, 30),
            covers=("bwd_head_x", "bwd_head_w", "bwd_sin_dm"),
        )
        self.dm = head[3]
        return head[4]

    def _mix_grad(self, layer: int) -> PortRef:
        model, box = self.model, self.boxes.features(layer + 1)
        self.shares["MIX"] = slices = share_out(model.height, SLICES)
        rows, columns = self._eights(ROW_EIGHTS), SUBGROUP * self._eights(OUTPUTS)
        grad = self._add(
            "mix_grad",
            self._products(
                "mix_grad",
                (slices, model.nf // (SUBGROUP * rows), model.nf // columns),
                rows,
                geometry=self.boxes.geometry,
                block={"SLICES": slices, "COLUMNS": columns},
            ),
            "backward",
            [
                link(0, "h", READ, self.features[layer]),
                link(1, "d", READ, self.convolved[layer]),
                link(2, "dm", READ, self.dm),
                Scratch(3, "partial", WRITE, model.layers * slices * model.mix_size),
            ],
            self._work(3, 4 * model.nf),
            uniform=self._part(box, share=layer * slices * model.mix_size // QUAD),
            covers=("gemm_mixw",),
        )
        return grad[3]

    def _mix_back(self, layer: int) -> PassSpec:
        model, box = self.model, self.boxes.features(layer + 1)
        outputs = self._eights(OUTPUTS)
        return self._add(
            "mix_back",
            self._products(
                "mix_back",
                (ceil_div(box.quads, TILE), box.rows, 2 * model.nf // (SUBGROUP * outputs)),
                outputs,
                geometry=self.boxes.geometry,
            ),
            "backward",
            [
                link(0, "dm", READ, self.dm),
                link(1, "mixes", READ, self.mixes),
                Scratch(2, "dh", WRITE, self.boxes.elements),
                Scratch(3, "dd", WRITE, self.boxes.elements),
            ],
            self._work(3, 4 * model.nf),
            uniform=self._part(box, matrix=layer * model.mix_size // 2 + model.mix_size // QUAD),
            covers=("gemm_mixx", "unpack_dm"),
        )

    def _conv_back(self, layer: int, mix: PassSpec) -> PortRef:
        model, box = self.model, self.boxes.features(layer)
        widest, shared = self.boxes.widest, model.nf * (model.taps + 1)
        strips, walks = share_out(widest.strips, 2 * SLICES), ceil_div(widest.rows, WALK)
        self.shares["TAPS"] = slices = strips * walks
        conv = self._add(
            "conv_back",
            self._kernels(
                "conv_back",
                (model.nf // self.lanes, strips, walks),
                geometry=self.boxes.geometry,
                lanes=self.own_lanes,
                walk={"ROWS": WALK},
                block={"SLICES": strips},
            ),
            "backward",
            [
                link(0, "taps", READ, self.taps),
                link(1, "h", READ, self.features[layer]),
                link(2, "dh", READ, mix[2]),
                link(3, "dd", READ, mix[3]),
                link(4, "dm", WRITE, self.dm),
                Scratch(5, "partial", WRITE, (model.layers - 1) * slices * shared),
            ],
            self._work(4, 4 * model.taps),
            uniform=self._part(box, source=self.boxes.features(layer + 1), share=(layer - 1) * slices * shared),
            covers=("bwd_dw_x", "bwd_dw_k", "bwd_sin_dm"),
        )
        return conv[5]

    def _stem_back(self, mix: PassSpec) -> PortRef:
        model, box = self.model, self.boxes.widest
        self.shares["STEM"] = slices = share_out(box.size, SLICES)
        stem = self._add(
            "stem_back",
            self._kernels(
                "stem_back",
                (model.nf // self.lanes, slices, 1),
                geometry=self.boxes.geometry,
                lanes=self.own_lanes,
                box=box.values,
                origin=self.boxes.origin,
                block={"SLICES": slices},
            ),
            "backward",
            [
                link(0, "waves", READ, self.waves),
                link(1, "h", READ, self.features[0]),
                link(2, "dh", READ, mix[2]),
                link(3, "dd", READ, mix[3]),
                size(4, "partial", WRITE, slices * model.nf * 6),
            ],
            self._work(3, 30),
            covers=("bwd_dw_x", "bwd_dw_k", "bwd_kern", "bwd_stem"),
        )
        return stem[4]

    def _gather(self, mix_share: PortRef, tap_share: PortRef, stem_share: PortRef, head_share: PortRef) -> None:
        model = self.model
        mix_quads = model.layers * model.mix_size // QUAD
        mixes = self._add(
            "gather_mix",
            self._kernels("gather_mix", (ceil_div(mix_quads, LANES), 1, 1), block={"SLICES": self.shares.pop("MIX")}),
            "backward",
            [
                link(0, "partial", READ, mix_share),
                size(1, "gradient", WRITE, model.weights, label="GW"),
                size(2, "broken", WRITE, mix_quads, dtype="u32"),
            ],
            self.cost.reduce(SLICES, model.layers * model.mix_size),
            covers=("reduce_mixw",),
        )
        self.gradient = mixes[1]
        rest = model.nf * (model.taps + 1 + 3) + 3 * (model.nf + 1)
        others = self._add_reader(
            "gather",
            Kernel("fused/scalar/gather.slang", {"slices": {"TAPS": 0, **self.shares}}, threads=(rest, 1, 1)),
            "backward",
            [
                link(1, "kernel", READ, self.kernel),
                link(2, "taps", READ, tap_share),
                link(3, "stem", READ, stem_share),
                link(4, "head", READ, head_share),
                link(5, "gradient", WRITE, self.gradient),
                size(6, "tap_gradient", WRITE, model.nf * model.taps),
                size(7, "broken", WRITE, rest, dtype="u32"),
            ],
            self.cost.reduce(SLICES, rest),
            covers=("bwd_kern",),
        )
        self._add_reader(
            "kern_back",
            Kernel(
                "fused/scalar/kern_back.slang",
                {"dims": {"MIX_REPORTS": mix_quads, "REPORTS": rest}},
                groups=(model.nf + model.kn + 1, 1, 1),
            ),
            "backward",
            [
                link(1, "tap_gradient", READ, others[6]),
                link(2, "mix_broken", READ, mixes[2]),
                link(3, "broken", READ, others[7]),
                link(4, "gradient", WRITE, self.gradient),
                link(5, "loss", WRITE, self.loss),
            ],
            self.cost.kern(),
            covers=("bwd_kern",),
        )
