"""Loss passes of the scalar fused plan: pictures in planes of quads, the terms, SSIM, DlOut."""

from __future__ import annotations

from convtrain.graph.builder import READ, WRITE, Kernel, data, size
from cook.model import SSIM_TAPS
from cook.recipes.fused_scalar.base import ScalarBase
from cook.recipes.fused_scalar.boxes import QUAD
from cook.recipes.reference.base import ceil_div, link
from cook.recipes.reference.loss import LOSS_FIELDS

LANES = 32  # workgroup size of the loss kernels
MARGIN = 3  # quads beside a plane, see slang/fused/scalar/planes.slang
WALK = {"ROWS": 32}  # rows that an invocation of an SSIM kernel walks down


class Loss(ScalarBase):
    """The same numbers as the reference's, four at a time."""

    def _loss(self) -> None:
        model = self.model
        quads = ceil_div(model.width, QUAD)
        planes = 3 * model.height * (quads + 2 * MARGIN) * QUAD
        by_quad = (ceil_div(model.height * quads, LANES), 1, 1)
        map_rows, map_columns = (max(side - SSIM_TAPS + 1, 0) for side in (model.height, model.width))
        windows = 3 * ceil_div(map_rows, WALK["ROWS"]) * ceil_div(map_columns, QUAD)
        weights = {"LAMBDA_C": model.lambda_c, "LAMBDA_G_OVER_DEN": model.lambda_g / model.den}
        split = self._add(
            "split_planes",
            Kernel("fused/scalar/split_planes.slang", groups=by_quad),
            "loss",
            [
                link(0, "output", READ, self.output),
                data(1, "target", READ, self.image, "target", label="target", shape=self.image_shape),
                size(2, "outputs", WRITE, planes),
                size(3, "targets", WRITE, planes),
            ],
            self.cost.copy(2 * planes),
            covers=("lossgrad",),
        )
        pictures = [link(0, "outputs", READ, split[2]), link(1, "targets", READ, split[3])]
        lossgrad = self._add(
            "lossgrad",
            self._kernels("lossgrad", by_quad, cfg=weights),
            "loss",
            [*pictures, size(2, "slopes", WRITE, planes), size(3, "terms", WRITE, QUAD * model.height * quads)],
            self.cost.lossgrad(),
        )
        ssim = self._add(
            "ssim_fwd",
            self._kernels("ssim_fwd", (max(ceil_div(windows, LANES), 1), 1, 1), walk=WALK),
            "loss",
            [*pictures, size(2, "coefficients", WRITE, 3 * planes), size(3, "sums", WRITE, max(windows, 1))],
            self.cost.ssim_forward(),
        )
        walks = 3 * ceil_div(model.height, WALK["ROWS"]) * quads
        add = self._add(
            "ssim_add",
            self._kernels("ssim_add", (ceil_div(walks, LANES), 1, 1), walk=WALK, cfg={"LAMBDA_S": model.lambda_s}),
            "loss",
            [
                *pictures,
                link(2, "coefficients", READ, ssim[2]),
                link(3, "other", READ, lossgrad[2]),
                size(4, "slopes", WRITE, planes),
                size(5, "dl_out", WRITE, self.image, label="DlOut", shape=self.image_shape),
            ],
            self.cost.ssim_add(),
        )
        total = self._add(
            "loss_sum",
            self._kernels(
                "loss_sum",
                (1, 1, 1),
                cfg={**weights, "LAMBDA_S": model.lambda_s},
                dims={"TERMS": model.height * quads, "SSIM_SUMS": windows, "SSIM_COUNT": 3 * map_rows * map_columns},
            ),
            "loss",
            [
                link(0, "terms", READ, lossgrad[3]),
                link(1, "sums", READ, ssim[3]),
                size(2, "loss", WRITE, len(LOSS_FIELDS), label="loss", host=True),
            ],
            self.cost.reduce(model.height * quads, QUAD),
            covers=("ssim_add",),
        )
        self.target, self.slopes, self.dl_out, self.loss = split[1], add[4], add[5], total[2]
