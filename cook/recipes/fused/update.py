"""Update passes of the fused plan: the schedule on the device, then one step of all weights."""

from __future__ import annotations

from convtrain.graph.builder import READ, READ_WRITE, WRITE, Kernel, PassSpec, share, size
from cook.recipes.fused.base import FusedBase
from cook.recipes.reference.base import ceil_div, link
from cook.recipes.reference.loss import LOSS_FIELDS
from cook.recipes.reference.update import ring_port
from cook.recipes.schedule import schedule_rules

STEPPED = 128  # weights that a workgroup of step updates


class Update(FusedBase):
    """As in the reference, with the epoch's controls from the state that the device keeps."""

    def _adam(self) -> None:
        """The schedule; the step itself follows where the reference has Muon's."""
        model, terms, similarities = self.model, self.shares["TERMS"], self.shares["SSIM"]
        reports = self.reports + self.shares["STEM"]
        schedule = self._add(
            "schedule",
            Kernel(
                "fused/schedule.slang",
                {
                    "cfg": {**schedule_rules(model), **self.loss_weights},
                    "dims": {
                        "TERM_GROUPS": terms,
                        "SSIM_GROUPS": similarities,
                        "REPORTS": self.reports,
                        "STEM": self.shares["STEM"],
                    },
                },
                groups=(1, 1, 1),
            ),
            "update",
            [
                link(0, "terms", READ, self.terms),
                link(1, "ssim", READ, self.similarity),
                link(2, "broken", READ, self.broken),
                link(3, "state", READ_WRITE, self.state),
                size(4, "loss", WRITE, len(LOSS_FIELDS), label="loss", host=True),
                link(5, "broken_stem", READ, self.broken_stem),
            ],
            {"nbytes": 16 * terms + 4 * (similarities + reports), "flops": 4 * terms + similarities},
            covers=("ssim_add",),
        )
        self.loss = schedule[4]

    def _muon(self) -> None:
        """Done: the direction beside the backward passes, the step of M in ``_record`` along with all others."""

    def _record(self) -> PassSpec:
        """The step of every weight and its record in the ring."""
        model = self.model
        groups = ceil_div(model.weights, STEPPED)  # and for the k-net's first layer one each
        return self._add(
            "step",
            Kernel("fused/step.slang", {"cfg": {"SCALE": model.muon_scale}}, groups=(groups + 3 * model.kn, 1, 1)),
            "update",
            [
                share(0, "weights", READ_WRITE),
                ring_port(model),
                link(2, "gradient", READ_WRITE, self.gradient),
                size(3, "adam_m", READ_WRITE, model.weights, label="adam_m", dump=True),
                size(4, "adam_v", READ_WRITE, model.weights, label="adam_v", dump=True),
                link(5, "state", READ, self.state),
                link(6, "momentum", READ_WRITE, self.momentum),
                link(7, "y", READ, self.direction),
                link(8, "unit_shares", READ, self.unit_shares),
            ],
            self.cost.adam(model.weights),
            covers=("bwd_kern", "upd", "muon_prep", "muon_apply", "wavg_acc"),
        )
