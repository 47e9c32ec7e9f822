"""Backward passes: from DlOut to GW, the gradient of the loss by every weight, in WBuf's layout."""

from __future__ import annotations

from convtrain.graph.builder import READ, READ_WRITE, WRITE, Kernel, PortRef, size
from convtrain.graph.types import STORE
from cook.model import TILE
from cook.recipes.reference.base import PACK, Scratch, link
from cook.recipes.reference.forward import Forward
from cook.recipes.reference.matrix import product, weight_gradient

KERNEL_BLOCKS = 5  # blocks of rows in which the kernel's gradient is summed


class Backward(Forward):
    """Head, layers from the last to the first, stem. ``dh`` is by the features of the layer that comes next."""

    dh: PortRef

    def _backward(self) -> None:
        self._head_backward()
        for layer in reversed(range(self.model.layers)):
            self._layer_backward(layer)
        self._stem_backward()

    def _head_backward(self) -> None:
        model = self.model
        x = self._add_reader(
            "bwd_head_x",
            Kernel("bwd_head_x.slang", groups=(model.padded_pixels // TILE, model.nf // PACK, 1)),
            "backward",
            [link(1, "dl_out", READ, self.dl_out), size(2, "dh", WRITE, self.planes, dtype=STORE)],
            self.cost.head(),
        )
        w = self._add(
            "bwd_head_w",
            Kernel("bwd_head_w.slang", groups=(model.nf // PACK, 1, 1)),
            "backward",
            [
                link(0, "h", READ, self.h),
                link(1, "dl_out", READ, self.dl_out),
                size(2, "gradient", WRITE, model.weights, label="GW"),
            ],
            self.cost.head(),
        )
        self.dh, self.gradient = x[2], w[2]

    def _layer_backward(self, layer: int) -> None:
        """dh of the layer's output becomes dh of its input; dM_l, and its share of the gradient of the k-net and db."""
        model, cut = self.model, self.cut
        matrix, taps = model.slot(f"mix.{layer}").offset, model.nf * model.taps
        dm = self._add(
            "bwd_sin_dm",
            Kernel("bwd_sin_dm.slang", threads=(model.padded_pixels, model.nf // PACK, 1)),
            "backward",
            [
                link(0, "m", READ, self.m[layer]),
                link(1, "dh", READ, self.dh),
                Scratch(2, "dm", WRITE, self.planes, STORE),
                Scratch(3, "dm_pixels", WRITE, self.planes, STORE),
            ],
            self.cost.pointwise(reads=2, writes=2),
        )
        pack = self._add_reader(
            "pack_wmix",
            self._pack(layer, inner=model.nf, row_pitch=model.nf, inner_pitch=1),
            "backward",
            [Scratch(1, "panels", WRITE, model.mix_size)],
            self.cost.copy(model.mix_size),
        )
        dcat = self._add(
            "gemm_mixx",
            product(model, cut, inner=model.nf, rows=2 * model.nf),
            "backward",
            [
                link(0, "panels", READ, pack[1]),
                link(1, "planes", READ, dm[2]),
                Scratch(2, "product", WRITE, 2 * self.planes, STORE),
            ],
            self.cost.gemm(),
        )[2]
        unpack = self._add(
            "unpack_dm",
            Kernel("unpack_dm.slang", groups=(model.slices, model.nf // PACK, 1)),
            "backward",
            [
                link(0, "dcat", READ, dcat),
                Scratch(1, "dd", WRITE, self.planes, STORE),
                Scratch(2, "db_partials", WRITE, model.nf * model.slices),
            ],
            self.cost.pointwise(reads=1, writes=1),
        )
        mixw = self._add(
            "gemm_mixw",
            weight_gradient(model, cut),
            "backward",
            [
                link(0, "cat", READ, self.cats[layer]),
                link(1, "dm_pixels", READ, dm[3]),
                Scratch(2, "partials", WRITE, model.slices * model.mix_size),
            ],
            self.cost.gemm(),
        )
        self._add(
            "reduce_mixw",
            Kernel("reduce_mixw.slang", values={"dims": {"MATRIX": matrix}}, threads=(model.mix_size, 1, 1)),
            "backward",
            [link(0, "partials", READ, mixw[2]), link(1, "gradient", WRITE, self.gradient)],
            self.cost.reduce(model.slices, model.mix_size),
        )
        self._add(
            "bwd_dw_x",
            Kernel("bwd_dw_x.slang", values={"strip": self._strip()}, threads=(self._strips(), model.nf, 1)),
            "backward",
            [
                link(0, "kernel", READ, self.kernel),
                link(1, "dcat", READ, dcat),
                link(2, "dd", READ, unpack[1]),
                link(3, "dh", WRITE, self.dh),
            ],
            self.cost.depthwise(),
        )
        dk = self._add(
            "bwd_dw_k",
            Kernel(
                "bwd_dw_k.slang",
                values={"strip": self._strip(), "dims": {"BLOCKS": KERNEL_BLOCKS}},
                groups=(KERNEL_BLOCKS, model.nf, 1),
            ),
            "backward",
            [
                link(0, "cat", READ, self.cats[layer]),
                link(1, "dd", READ, unpack[1]),
                Scratch(2, "dk_partials", WRITE, KERNEL_BLOCKS * taps),
            ],
            self.cost.depthwise(),
        )
        top = layer == model.layers - 1
        self._add_reader(
            "bwd_kern",
            Kernel(
                "bwd_kern.slang",
                values={"dims": {"BLOCKS": KERNEL_BLOCKS, "TURN": 1 if top else 2}},
                groups=(model.kn + model.nf, 1, 1),
            ),
            "backward",
            [
                link(1, "dk_partials", READ, dk[2]),
                link(2, "db_partials", READ, unpack[2]),
                link(3, "gradient", READ_WRITE, self.gradient),
            ],
            self.cost.kern(),
        )

    def _stem_backward(self) -> None:
        self._add(
            "bwd_stem",
            Kernel("bwd_stem.slang", groups=(self.model.nf, 1, 1)),
            "backward",
            [link(0, "z", READ, self.z), link(1, "dh", READ, self.dh), link(2, "gradient", WRITE, self.gradient)],
            self.cost.pointwise(reads=2, writes=0),
        )
