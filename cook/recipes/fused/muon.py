"""Muon in the fused plan: a layer's gradient as soon as its shares are there, and the direction of the step."""

from __future__ import annotations

from convtrain.graph.builder import READ, READ_WRITE, WRITE, Kernel, PortRef, PortSpec, size
from cook.recipes.fused.base import GATHERED
from cook.recipes.fused.shares import Shares
from cook.recipes.reference.base import Link, link
from cook.recipes.reference.update import NEWTON_SCHULZ_STEPS


class Muon(Shares):
    """Both need none of what comes after their layer in the backward pass, and run beside it."""

    def _gather_mix(self, layer: int, share: PortRef, slices: int, first: int = 0, tiled: int = 0) -> None:
        """A layer's gradient at once, beside the next pass: its shares are still in the cache then. ``tiled``: in
        how many slices kernels by tiles give it, where they do."""
        model = self.model
        mixes, shape = model.layers * model.mix_size, (model.layers, 2 * model.nf, model.nf)
        groups = model.mix_size // GATHERED
        if layer == model.layers - 1:
            self.reports = model.layers * groups + sum(self._shared_groups)
            buffers: tuple[PortSpec | Link, ...] = (
                size(2, "momentum", READ, mixes, label="muon_b", shape=shape, dump=True),
                size(3, "gradient", WRITE, model.weights, label="GW"),
                size(4, "squares", WRITE, model.layers * groups),
                size(5, "broken", WRITE, self.reports, dtype="u32"),
                size(6, "y", WRITE, mixes),
            )
        else:
            buffers = (
                link(2, "momentum", READ, self.momentum),
                link(3, "gradient", WRITE, self.gradient),
                link(4, "squares", WRITE, self.squares),
                link(5, "broken", WRITE, self.broken),
                link(6, "y", WRITE, self.direction),
            )
        gate = [link(7, "sharp", READ, self.sharp)] if tiled else []
        gather = self._add(
            "gather_mix",
            Kernel(
                "fused/gather_mix.slang",
                {"slices": {"FIRST": first, "COUNT": slices, "TILED": tiled, "LAYER": layer}},
                groups=(groups, 1, 1),
                defines=("SPARE",) if tiled else (),
            ),
            "backward",
            [link(0, "state", READ, self.state), link(1, "mix", READ, share), *buffers, *gate],
            self.cost.reduce(slices, model.mix_size),
            covers=("reduce_mixw", "muon_prep"),
        )
        if layer == model.layers - 1:
            self.momentum, self.gradient, self.squares, self.broken = gather[2], gather[3], gather[4], gather[5]
            self.direction = gather[6]

    def _muon_direction(self) -> None:
        """Newton–Schulz of every layer; it needs no more than the layers' gradients, so that other passes hide it."""
        model = self.model
        mixes = model.layers * model.mix_size
        self._add(
            "muon",
            self._on_matrices(
                "muon",
                (model.layers, 1, 1),
                dims={"PARTS": model.mix_size // GATHERED, "STEPS": NEWTON_SCHULZ_STEPS},
            ),
            "update",
            [
                link(0, "y", READ_WRITE, self.direction),
                link(1, "squares", READ, self.squares),
            ],
            self.cost.matrix(mixes, NEWTON_SCHULZ_STEPS * 5 * model.nf // 2),
            covers=("muon_prep", "muon_gram", "muon_poly", "muon_upd"),
        )
