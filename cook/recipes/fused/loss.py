"""Loss passes of the fused plan: SSIM's coefficients, then DlOut with every term; the schedule adds up the terms."""

from __future__ import annotations

from convtrain.graph.builder import READ, WRITE, Kernel, data, size
from cook.model import SSIM_TAPS
from cook.recipes.fused.base import FusedBase
from cook.recipes.reference.base import ceil_div, link

TILE_PIXELS, TILE_ROWS = 32, 4  # slang/fused/loss_terms.slang


class Loss(FusedBase):
    """As in the reference, tile by tile in shared memory."""

    def _loss(self) -> None:
        model = self.model
        tiles = (ceil_div(model.width, TILE_PIXELS), ceil_div(model.height, TILE_ROWS), 1)
        count = tiles[0] * tiles[1]
        windows = max(model.height - SSIM_TAPS + 1, 0) * max(model.width - SSIM_TAPS + 1, 0)
        weights = {
            "LAMBDA_C": model.lambda_c,
            "LAMBDA_G_OVER_DEN": model.lambda_g / model.den,
            "LAMBDA_S": model.lambda_s,
        }
        ssim = self._add(
            "ssim",
            Kernel("fused/ssim_coefficients.slang", groups=tiles),
            "loss",
            [
                link(0, "output", READ, self.output),
                data(1, "target", READ, self.image, "target", label="target", shape=self.image_shape),
                size(2, "coefficients", WRITE, max(9 * windows, 1)),
                size(3, "partials", WRITE, count),
            ],
            self.cost.ssim_forward(),
            covers=("ssim_fwd",),
        )
        gradient = self._add(
            "loss_gradient",
            Kernel("fused/loss_gradient.slang", {"cfg": weights}, groups=tiles),
            "loss",
            [
                link(0, "output", READ, self.output),
                link(1, "target", READ, ssim[1]),
                size(2, "dl_out", WRITE, self.image, label="DlOut", shape=self.image_shape),
                link(3, "coefficients", READ, ssim[2]),
                size(4, "partials", WRITE, 4 * count),
            ],
            self.cost.ssim_add(),
            covers=("lossgrad", "ssim_add"),
        )
        self.loss_weights, self.loss_tiles = weights, count
        self.target, self.dl_out = ssim[1], gradient[2]
        self.similarity, self.terms = ssim[3], gradient[4]
