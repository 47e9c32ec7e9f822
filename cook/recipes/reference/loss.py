"""Loss passes: the terms, and DlOut, the gradient of the loss by Out."""

from __future__ import annotations

from convtrain.graph.builder import READ, READ_WRITE, WRITE, Kernel, data, size
from cook.model import SSIM_TAPS
from cook.recipes.reference.base import Base, ceil_div, link

LOSS_FIELDS = ("loss", "mse", "chroma", "grad", "ssim")
LANES = 64  # workgroup size of the loss kernels
WALK = 16  # rows that an invocation of an SSIM kernel walks down


class Loss(Base):
    """Everything but SSIM, then SSIM forward and backward; the last pass also adds up the terms."""

    def _loss(self) -> None:
        model = self.model
        groups = ceil_div(model.height * model.width, LANES)
        map_rows, map_columns = max(model.height - SSIM_TAPS + 1, 0), 3 * max(model.width - SSIM_TAPS + 1, 0)
        map_groups = max(ceil_div(ceil_div(map_rows, WALK) * map_columns, LANES), 1)
        picture_groups = ceil_div(ceil_div(model.height, WALK) * 3 * model.width, LANES)
        weights = {"LAMBDA_C": model.lambda_c, "LAMBDA_G_OVER_DEN": model.lambda_g / model.den}
        lossgrad = self._add(
            "lossgrad",
            Kernel("lossgrad.slang", values={"cfg": weights}, groups=(groups, 1, 1)),
            "loss",
            [
                link(0, "output", READ, self.output),
                data(1, "target", READ, self.image, "target", label="target", shape=self.image_shape),
                size(2, "dl_out", WRITE, self.image, label="DlOut", shape=self.image_shape),
                size(3, "partials", WRITE, 4 * groups),
            ],
            self.cost.lossgrad(),
        )
        ssim = self._add(
            "ssim_fwd",
            Kernel("ssim_fwd.slang", groups=(map_groups, 1, 1)),
            "loss",
            [
                link(0, "output", READ, self.output),
                link(1, "target", READ, lossgrad[1]),
                size(2, "coefficients", WRITE, max(3 * map_rows * map_columns, 1)),
                size(3, "partials", WRITE, map_groups),
            ],
            self.cost.ssim_forward(),
        )
        add = self._add(
            "ssim_add",
            Kernel(
                "ssim_add.slang",
                values={
                    "cfg": {**weights, "LAMBDA_S": model.lambda_s},
                    "dims": {"LOSS_GROUPS": groups, "SSIM_GROUPS": map_groups},
                },
                groups=(1 + picture_groups, 1, 1),
            ),
            "loss",
            [
                link(0, "output", READ, self.output),
                link(1, "target", READ, lossgrad[1]),
                link(2, "dl_out", READ_WRITE, lossgrad[2]),
                link(3, "coefficients", READ, ssim[2]),
                link(4, "loss_partials", READ, lossgrad[3]),
                link(5, "ssim_partials", READ, ssim[3]),
                size(6, "loss", WRITE, len(LOSS_FIELDS), label="loss", host=True),
            ],
            self.cost.ssim_add(),
        )
        self.target, self.dl_out, self.loss = lossgrad[1], lossgrad[2], add[6]
