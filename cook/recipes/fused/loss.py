"""Loss passes of the fused plan: SSIM's coefficients, then DlOut with every term; the schedule adds up the terms."""

from __future__ import annotations

from convtrain.graph.builder import READ, WRITE, Kernel, data, size
from cook.model import SSIM_TAPS
from cook.recipes.fused.base import FusedBase, share_out
from cook.recipes.fused.regions import Values
from cook.recipes.reference.base import ceil_div, link

TILE = {"PIXELS": 64, "ROWS": 4, "RUN": 4}  # slang/fused/loss_tile.slang
SSIM_SLICES, GRADIENT_SLICES = 396, 264  # workgroups, at most


class Loss(FusedBase):
    """As in the reference, tile by tile in shared memory."""

    def _tiles(self, slices: int) -> Values:
        """The picture cut into tiles, a thread for each column that they depend on, in whole warps."""
        count = ceil_div(self.model.width, TILE["PIXELS"]) * ceil_div(self.model.height, TILE["ROWS"])
        threads = 32 * ceil_div(3 * (TILE["PIXELS"] + SSIM_TAPS - 1), 32)
        return {**TILE, "THREADS": threads, "COUNT": count, "SLICES": share_out(count, slices)}

    def _loss(self) -> None:
        model = self.model
        ssim_tile, tile = self._tiles(SSIM_SLICES), self._tiles(GRADIENT_SLICES)
        windows = max(model.height - SSIM_TAPS + 1, 0) * max(model.width - SSIM_TAPS + 1, 0)
        weights = {
            "LAMBDA_C": model.lambda_c,
            "LAMBDA_G_OVER_DEN": model.lambda_g / model.den,
            "LAMBDA_S": model.lambda_s,
        }
        ssim = self._add(
            "ssim",
            Kernel("fused/ssim_coefficients.slang", {"tile": ssim_tile}, groups=(ssim_tile["SLICES"], 1, 1)),
            "loss",
            [
                link(0, "output", READ, self.output),
                data(1, "target", READ, self.image, "target", label="target", shape=self.image_shape),
                size(2, "coefficients", WRITE, max(12 * windows, 4)),
                size(3, "partials", WRITE, ssim_tile["SLICES"]),
            ],
            self.cost.ssim_forward(),
            covers=("ssim_fwd",),
        )
        gradient = self._add(
            "loss_gradient",
            Kernel("fused/loss_gradient.slang", {"cfg": weights, "tile": tile}, groups=(tile["SLICES"], 1, 1)),
            "loss",
            [
                link(0, "output", READ, self.output),
                link(1, "target", READ, ssim[1]),
                size(2, "dl_out", WRITE, self.image, label="DlOut", shape=self.image_shape),
                link(3, "coefficients", READ, ssim[2]),
                size(4, "partials", WRITE, 4 * tile["SLICES"]),
            ],
            self.cost.ssim_add(),
            covers=("lossgrad", "ssim_add"),
        )
        self.loss_weights = weights
        self.shares.update(SSIM=ssim_tile["SLICES"], TERMS=tile["SLICES"])
        self.target, self.dl_out = ssim[1], gradient[2]
        self.similarity, self.terms = ssim[3], gradient[4]
