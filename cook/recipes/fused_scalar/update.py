"""Update passes of the scalar fused plan: as in the fp16 one, but for Newton–Schulz, which is that of the reference."""

from __future__ import annotations

from convtrain.graph.builder import READ, READ_WRITE, WRITE, Kernel, PassSpec, PortRef, share, size
from cook.recipes.fused_scalar.base import STATE_WORDS, ScalarBase
from cook.recipes.reference.base import Scratch, ceil_div, link
from cook.recipes.reference.update import NEWTON_SCHULZ_STEPS, ring_port
from cook.recipes.schedule import schedule_rules

BLOCK = 4  # rows and columns of a matrix that an invocation of the Muon products makes
SIDE = (8, 4)  # invocations of their workgroups


class Update(ScalarBase):
    """The epoch's controls come from the state that the device keeps."""

    def _adam(self) -> None:
        model = self.model
        schedule = self._add(
            "schedule",
            Kernel(
                "fused/scalar/schedule.slang",
                {"cfg": schedule_rules(model)},
                groups=(1, 1, 1),
            ),
            "update",
            [
                link(0, "loss", READ, self.loss),
                size(1, "state", READ_WRITE, STATE_WORDS, label="state", dtype="u32", dump=True),
            ],
            {"nbytes": 128, "flops": 64},
        )
        self.state = schedule[1]
        elements = model.weights - model.layers * model.mix_size
        self._add_reader(
            "upd",
            Kernel("fused/scalar/adam.slang", threads=(elements, 1, 1)),
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
            Kernel("fused/scalar/muon_momentum.slang", {"dims": {"PARTS": parts}}, groups=(model.layers * parts, 1, 1)),
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
            Kernel("fused/scalar/muon_start.slang", {"dims": {"PARTS": parts}}, threads=(mixes, 1, 1)),
            "update",
            [
                link(0, "momentum", READ, momentum[2]),
                link(1, "squares", READ, momentum[3]),
                link(2, "state", READ, self.state),
                size(3, "x", WRITE, mixes),
            ],
            self.cost.copy(mixes),
            covers=("muon_prep",),
        )
        x = self._orthogonalise(start[3])
        self._add_reader(
            "muon_apply",
            Kernel("fused/scalar/muon_apply.slang", {"cfg": {"SCALE": model.muon_scale}}, threads=(mixes, 1, 1)),
            "update",
            [link(1, "x", READ, x), link(2, "state", READ, self.state)],
            self.cost.copy(mixes),
            access=READ_WRITE,
        )

    def _orthogonalise(self, x: PortRef) -> PortRef:
        """Newton–Schulz on every layer at once, ping-pong between X and X2; gives the port of the last X."""
        model = self.model
        mixes, squares = model.layers * model.mix_size, model.layers * model.nf**2
        side = model.nf // BLOCK
        square = (ceil_div(side, SIDE[0]), ceil_div(side, SIDE[1]), model.layers)
        wide = (ceil_div(2 * side, SIDE[0]), ceil_div(side, SIDE[1]), model.layers)
        spare: PortRef | None = None
        for _ in range(NEWTON_SCHULZ_STEPS):
            gram = self._add(
                "muon_gram",
                self._kernels("muon_gram", square),
                "update",
                [link(0, "x", READ, x), Scratch(1, "gram", WRITE, squares)],
                self.cost.matrix(squares, 2 * model.nf),
            )
            poly = self._add(
                "muon_poly",
                self._kernels("muon_poly", square),
                "update",
                [link(0, "gram", READ, gram[1]), Scratch(1, "poly", WRITE, squares)],
                self.cost.matrix(squares, model.nf),
            )
            step = self._add(
                "muon_upd",
                self._kernels("muon_upd", wide),
                "update",
                [
                    link(0, "x", READ, x),
                    link(1, "poly", READ, poly[1]),
                    link(2, "x_next", WRITE, spare) if spare else size(2, "x_next", WRITE, mixes),
                ],
                self.cost.matrix(mixes, model.nf),
            )
            x, spare = step[2], x
        return x

    def _record(self) -> PassSpec:
        return self._add(
            "wavg_acc",
            Kernel("fused/scalar/record.slang", threads=(self.model.weights, 1, 1)),
            "average",
            [share(0, "weights", READ), ring_port(self.model), link(2, "state", READ, self.state)],
            self.cost.copy(self.model.weights),
        )
