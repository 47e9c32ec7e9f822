"""Shares of gradients, which the slices leave, added up: those of taps, biases, stem and head."""

from __future__ import annotations

from convtrain.graph.builder import READ, WRITE, Kernel, PortRef, size
from cook.recipes.fused.base import GATHERED, FusedBase
from cook.recipes.reference.base import ceil_div, link

GATHERED_TOGETHER = 64  # numbers that a workgroup of gather_shares adds up


class Shares(FusedBase):
    """In two passes, so that what layer 0 has no part in does not wait for it."""

    @property
    def _shared_groups(self) -> tuple[int, int]:
        """Workgroups of ``gather_shares``: those of the taps, and those of the head."""
        taps, head = self._shared
        return ceil_div(taps, GATHERED_TOGETHER), ceil_div(head, GATHERED_TOGETHER)

    @property
    def _shared(self) -> tuple[int, int]:
        """Numbers that every slice has a share of: those of the taps, and those of the head."""
        model = self.model
        return model.nf * (model.taps + 1), (model.nf + 1) * 3

    def _gather_shares(self, tap_share: PortRef, head_share: PortRef) -> PortRef:
        """The shares that need not wait for layer 0's."""
        model = self.model
        counts = {name: self.shares[name] for name in ("TAPS", "HEAD")}
        shares = self._add(
            "gather_shares",
            Kernel(
                "fused/gather_shares.slang",
                {"slices": {**counts, "REPORTS": model.layers * model.mix_size // GATHERED}},
                groups=(sum(self._shared_groups), 1, 1),
            ),
            "backward",
            [
                link(0, "taps", READ, tap_share),
                link(1, "head", READ, head_share),
                size(2, "sums", WRITE, sum(self._shared) + 1),
                link(3, "broken", WRITE, self.broken),
                link(4, "state", READ, self.state),
            ],
            self.cost.reduce(self.shares["TAPS"] * (model.layers - 1), self._shared[0]),
            covers=("bwd_kern",),
        )
        return shares[2]

    def _gather(self, sums: PortRef, stem_share: PortRef) -> None:
        model, slices = self.model, self.shares["STEM"]
        gather = self._add_reader(
            "gather",
            Kernel("fused/gather.slang", {"slices": {"STEM": slices}}, groups=(model.nf, 1, 1)),
            "backward",
            [
                link(1, "turns", READ, self.turns),
                link(2, "kernel", READ, self.kernel),
                link(3, "hidden", READ, self.hidden),
                link(4, "sums", READ, sums),
                link(5, "stem", READ, stem_share),
                link(6, "gradient", WRITE, self.gradient),
                size(7, "unit_shares", WRITE, 3 * model.kn * model.nf),
            ],
            self.cost.reduce(slices, 6 * model.nf),
            covers=("bwd_kern",),
        )
        self.unit_shares = gather[7]
