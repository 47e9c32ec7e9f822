"""Update passes: Adam, Muon, and the average of the last epochs' weights."""

from __future__ import annotations

from convtrain.graph.builder import (
    READ,
    READ_WRITE,
    WRITE,
    Kernel,
    PassSpec,
    PortRef,
    PortSpec,
    UniformSpec,
    share,
    size,
)
from cook.model import ModelConfig
from cook.recipes.reference.base import Base, Scratch, ceil_div, link

NEWTON_SCHULZ_STEPS = 5
MUON_BLOCK = 4 * 8  # rows and columns of a matrix that a workgroup of the Muon products takes


class Update(Base):
    """Adam on everything but the mixing matrices, Muon on those; neither acts on a loss that is not finite."""

    def _adam(self) -> None:
        model = self.model
        elements = model.weights - model.layers * model.mix_size
        self._add_reader(
            "upd",
            Kernel("upd.slang", threads=(elements, 1, 1)),
            "update",
            [
                link(1, "gradient", READ, self.gradient),
                size(2, "adam_m", READ_WRITE, model.weights, label="adam_m", dump=True),
                size(3, "adam_v", READ_WRITE, model.weights, label="adam_v", dump=True),
                link(4, "loss", READ, self.loss),
            ],
            self.cost.adam(elements),
            access=READ_WRITE,
            uniform=UniformSpec(
                controls={name: name for name in ("lr", "beta1_correction", "beta2_correction")},
                dump=True,
                label="state",
                initial={"plateau_scale": 1.0, "loss_scale": 1.0},
            ),
        )

    def _muon(self) -> None:
        model = self.model
        mixes, shape = model.layers * model.mix_size, (model.layers, 2 * model.nf, model.nf)
        prep = self._add(
            "muon_prep",
            Kernel("muon_prep.slang", groups=(model.layers, 1, 1)),
            "update",
            [
                link(0, "gradient", READ, self.gradient),
                link(1, "loss", READ, self.loss),
                size(2, "momentum", READ_WRITE, mixes, label="muon_b", shape=shape, dump=True),
                size(3, "x", WRITE, mixes),
            ],
            self.cost.copy(2 * mixes),
        )
        x = self._newton_schulz(prep[3])
        self._add_reader(
            "muon_apply",
            Kernel("muon_apply.slang", values={"cfg": {"SCALE": model.muon_scale}}, threads=(mixes, 1, 1)),
            "update",
            [link(1, "x", READ, x)],
            self.cost.copy(mixes),
            access=READ_WRITE,
            uniform=UniformSpec(controls={"lr": "lr"}),
        )

    def _newton_schulz(self, x: PortRef) -> PortRef:
        """Five steps on all layers at once, ping-pong between X and X2; gives the port of the last X."""
        model = self.model
        mixes, squares = model.layers * model.mix_size, model.layers * model.nf**2
        high, wide = ceil_div(model.nf, MUON_BLOCK), ceil_div(2 * model.nf, MUON_BLOCK)
        spare: PortRef | None = None
        for _ in range(NEWTON_SCHULZ_STEPS):
            gram = self._add(
                "muon_gram",
                Kernel("muon_gram.slang", groups=(high, high, model.layers)),
                "update",
                [link(0, "x", READ, x), Scratch(1, "gram", WRITE, squares)],
                self.cost.matrix(squares, 2 * model.nf),
            )
            poly = self._add(
                "muon_poly",
                Kernel("muon_poly.slang", groups=(high, high, model.layers)),
                "update",
                [link(0, "gram", READ, gram[1]), Scratch(1, "poly", WRITE, squares)],
                self.cost.matrix(squares, model.nf),
            )
            step = self._add(
                "muon_upd",
                Kernel("muon_upd.slang", groups=(wide, high, model.layers)),
                "update",
                [
                    link(0, "x", READ, x),
                    link(1, "poly", READ, poly[1]),
                    size(2, "x_next", WRITE, mixes) if spare is None else link(2, "x_next", WRITE, spare),
                ],
                self.cost.matrix(mixes, model.nf),
            )
            x, spare = step[2], x
        return x

    def _record(self) -> PassSpec:
        """Every epoch's weights into the ring: the pass whose port 1 owns the ring."""
        return self._add(
            "wavg_acc",
            Kernel("wavg_acc.slang", threads=(self.model.weights, 1, 1)),
            "average",
            [share(0, "weights", READ), ring_port(self.model)],
            self.cost.copy(self.model.weights),
            uniform=UniformSpec(controls={"ring_slot": "slot"}),
        )

    def _average(self) -> PassSpec:
        """Record the weights; gives the pass that turns the records into their mean, which training skips."""
        model, slots = self.model, self.model.average_window
        record = self._record()
        self._weight_readers.append(record)
        return self._add_reader(
            "wavg_apply",
            Kernel("wavg_apply.slang", values={"cfg": {"SLOTS": slots}}, threads=(model.weights, 1, 1)),
            "average",
            [link(1, "ring", READ, record[1])],
            self.cost.reduce(slots, model.weights),
            access=WRITE,
            skip=True,
            uniform=UniformSpec(controls={"ring_first": "first", "ring_count": "count"}),
        )


def ring_port(model: ModelConfig) -> PortSpec:
    """Port 1 of the pass that records weights: the ring of the last epochs' weights."""
    shape = (model.average_window, model.weights)
    return size(1, "ring", WRITE, shape[0] * shape[1], label="weight_ring", shape=shape, dump=True)
