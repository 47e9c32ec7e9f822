"""Layer 0 by tiles of 16 x 16 pixels, for plane waves that turn so little from pixel to pixel that 32 polynomials hold
them: see ``slang/fused/tile_terms.slang``."""

from __future__ import annotations

from cook.model import ModelConfig
from cook.recipes.fused.regions import Region
from cook.recipes.reference.base import ceil_div

SIDE = 16  # of a tile, in pixels
BANDS = 4  # of a tile
PIXELS = SIDE * SIDE
TERMS = 32
MAIN_TERMS = 16  # of them, with coefficients in two halves
CONSTANTS = 16  # rows of tile_mix beyond those of the features
LIMIT = 0.14  # radians from pixel to pixel, along x and along y: 1.19 in stem.w where the longer side is 512
SMALLEST_SIDE = 448  # of an image, in pixels: initial weights lie below 1, and leave some room to learn


def fit(model: ModelConfig) -> bool:
    """Whether the waves of a new model are gentle enough. Those that training makes too sharp have exact kernels."""
    return max(model.height, model.width) >= SMALLEST_SIDE


def tall(region: Region) -> int:
    """Tiles of a region below one another; the last may reach beyond it."""
    return ceil_div(region.bands, BANDS)


def count(region: Region) -> int:
    """Tiles of a region."""
    return region.pairs * tall(region)
