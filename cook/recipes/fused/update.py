"""Update passes of the fused plan: the schedule on the device, Adam, Muon on matrix units, the record of weights."""

from __future__ import annotations

from convtrain.graph.builder import READ, READ_WRITE, WRITE, Kernel, PassSpec, PortRef, share, size
from convtrain.graph.types import STORE
from cook.recipes.fused.base import FusedBase
from cook.recipes.reference.base import Scratch, ceil_div, link
from cook.recipes.reference.update import NEWTON_SCHULZ_STEPS, ring_port

LANES = 128  # workgroup size of the element-wise kernels


class Update(FusedBase):
    """As in the reference, with the epoch's controls from the state that the device keeps."""

    def _adam(self) -> None:
        model = self.model
        names = ("warmup", "ema_decay", "improvement", "patience", "plateau_factor", "plateau_floor")
        rules = {name.upper(): getattr(model, name) for name in names}
        self._add(
            "schedule",
            Kernel(
                "fused/schedule.slang",
                {"cfg": {**rules, "LEARNING_RATE": model.lr, "WINDOW": model.average_window}},
                groups=(1, 1, 1),
            ),
            "update",
            [link(0, "loss", READ, self.loss), link(1, "state", READ_WRITE, self.state)],
            {"nbytes": 128, "flops": 64},
        )
        elements = model.weights - model.layers * model.mix_size
        self._add_reader(
            "upd",
            Kernel("fused/adam.slang", threads=(elements, 1, 1)),
            "update",
            [
                link(1, "gradient", READ, self.gradient),
                size(2, "adam_m", READ_WRITE, model.weights, label="adam_m", dump=True),
                size(3, "adam_v", READ_WRITE, model.weights, label="adam_v", dump=True),
                link(4, "state", READ, self.state),
            ],
            self.cost.adam(elements),
            access=READ_WRITE,
        )

    def _muon(self) -> None:
        model = self.model
        mixes, parts = model.layers * model.mix_size, model.nf // 8
        shape = (model.layers, 2 * model.nf, model.nf)
        momentum = self._add(
            "muon_momentum",
            Kernel("fused/muon_momentum.slang", {"dims": {"PARTS": parts}}, groups=(model.layers * parts, 1, 1)),
            "update",
            [
                link(0, "gradient", READ, self.gradient),
                link(1, "state", READ, self.state),
                size(2, "momentum", READ_WRITE, mixes, label="muon_b", shape=shape, dump=True),
                size(3, "squares", WRITE, model.layers * parts),
            ],
            self.cost.copy(2 * mixes),
            covers=("muon_prep",),
        )
        start = self._add(
            "muon_start",
            self._on_halves("muon_start", (ceil_div(mixes, LANES), 1, 1), dims={"PARTS": parts}),
            "update",
            [
                link(0, "momentum", READ, momentum[2]),
                link(1, "squares", READ, momentum[3]),
                link(2, "state", READ, self.state),
                size(3, "y", WRITE, mixes, dtype=STORE),
                size(4, "x", WRITE, mixes, dtype=STORE),
            ],
            self.cost.copy(mixes),
            covers=("muon_prep",),
        )
        y = self._orthogonalise(start[3], start[4])
        self._add_reader(
            "muon_apply",
            self._on_halves("muon_apply", (ceil_div(mixes, LANES), 1, 1), cfg={"SCALE": model.muon_scale}),
            "update",
            [link(1, "y", READ, y), link(2, "state", READ, self.state)],
            self.cost.copy(mixes),
            access=READ_WRITE,
        )

    def _orthogonalise(self, y: PortRef, x: PortRef) -> PortRef:
        """Newton–Schulz on every layer at once; Y and X = Yᵀ go back and forth between two pairs of buffers."""
        model = self.model
        squares, mixes, side = model.layers * model.nf**2, model.layers * model.mix_size, model.nf // 16
        spare: tuple[PortRef, PortRef] | None = None
        for _ in range(NEWTON_SCHULZ_STEPS):
            gram = self._add(
                "muon_gram",
                self._on_matrices("muon_gram", (side, side, model.layers)),
                "update",
                [link(0, "x", READ, x), Scratch(1, "gram", WRITE, squares, STORE)],
                self.cost.matrix(squares, 2 * model.nf),
            )
            poly = self._add(
                "muon_poly",
                self._on_matrices("muon_poly", (side, side, model.layers)),
                "update",
                [link(0, "gram", READ, gram[1]), Scratch(1, "poly", WRITE, squares, STORE)],
                self.cost.matrix(squares, model.nf),
            )
            step = self._add(
                "muon_upd",
                self._on_matrices("muon_upd", (side, 2 * side, model.layers)),
                "update",
                [
                    link(0, "y", READ, y),
                    link(1, "poly", READ, poly[1]),
                    link(2, "next_y", WRITE, spare[0]) if spare else size(2, "next_y", WRITE, mixes, dtype=STORE),
                    link(3, "next_x", WRITE, spare[1]) if spare else size(3, "next_x", WRITE, mixes, dtype=STORE),
                ],
                self.cost.matrix(mixes, model.nf),
            )
            y, x, spare = step[2], step[3], (y, x)
        return y

    def _record(self) -> PassSpec:
        return self._add(
            "wavg_acc",
            Kernel("fused/record.slang", threads=(self.model.weights, 1, 1)),
            "average",
            [share(0, "weights", READ), ring_port(self.model), link(2, "state", READ, self.state)],
            self.cost.copy(self.model.weights),
        )
