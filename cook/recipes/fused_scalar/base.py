"""What the parts of the scalar fused plan share: maps, boxes, and the variants of a kernel."""

from __future__ import annotations

from collections.abc import Mapping

from convtrain.graph.builder import WRITE, Kernel, PortRef, PortSpec, UniformSpec, size
from cook.recipes.cost import Work
from cook.recipes.fused_scalar.boxes import Box, Boxes
from cook.recipes.reference.base import Base, ceil_div
from cook.recipes.reference.matrix import OCTETS, SUBGROUP

STATE_WORDS = 12  # slang/fused/state.slang; as many as the state block of the reference
TILE = 4  # quads of a tile of the matrix products
WALK = 160  # rows that a depthwise kernel walks down at most: each walk computes KS - 1 rows in vain
OUTPUTS = 4  # eights of features that an invocation of a matrix product keeps in registers at most

Groups = tuple[int, int, int]
Constants = Mapping[str, int | float]


def share_out(tiles: int, most: int) -> int:
    """In how many slices ``tiles`` are dealt: at most ``most``, and evenly."""
    return ceil_div(tiles, ceil_div(tiles, most))


class ScalarBase(Base):
    """``features`` and ``convolved`` are the maps h and d of each layer; ``shares`` counts the slices by kind."""

    mixes: PortRef
    taps: PortRef
    heads: PortRef
    waves: PortRef
    state: PortRef
    dm: PortRef
    slopes: PortRef

    def prepare(self) -> None:
        self.boxes = Boxes(self.model)
        self.features: list[PortRef] = []
        self.convolved: list[PortRef] = []
        self.shares: dict[str, int] = {}
        self.lanes = SUBGROUP * self._eights(OUTPUTS)  # of a workgroup whose invocations own a feature each

    def _kernels(self, name: str, groups: Groups, **values: Constants) -> tuple[Kernel, ...]:
        """``slang/fused/scalar/<name>`` on texels, and on storage buffers alone."""
        source = f"fused/scalar/{name}.slang"
        return (
            Kernel(source, values, groups=groups, name="texels", defines=("TEXELS",)),
            Kernel(source, values, groups=groups),
        )

    @property
    def own_lanes(self) -> Constants:
        """The values ``lanes`` of a kernel whose invocations own a feature each."""
        return {"COUNT": self.lanes, "OUTPUTS": 1}

    def _products(self, name: str, groups: Groups, outputs: int, **values: Constants) -> tuple[Kernel, ...]:
        """The same for kernels whose workgroups make ``outputs`` eights of features: first by broadcasts of eight."""
        source = f"fused/scalar/{name}.slang"
        octets = {**values, "lanes": {"COUNT": SUBGROUP, "OUTPUTS": outputs}}
        wide = {**values, "lanes": {"COUNT": SUBGROUP * outputs, "OUTPUTS": 1}}
        return (
            Kernel(source, octets, groups=groups, name="octets", requires=OCTETS, defines=("TEXELS", "OCTETS")),
            Kernel(source, wide, groups=groups, name="texels", defines=("TEXELS",)),
            Kernel(source, wide, groups=groups),
        )

    def _part(self, box: Box, *, source: Box | None = None, matrix: int = 0, share: int = 0) -> UniformSpec:
        """The block ``part`` of a pass that computes ``box``: see ``slang/fused/scalar/part.slang``."""
        values = {name.lower(): value for name, value in box.values.items()}
        if source is not None:
            values |= {f"source_{name.lower()}": value for name, value in source.values.items()}
        return UniformSpec(initial={**values, "matrix": matrix, "share": share})

    def _eights(self, most: int) -> int:
        """The most eights of features, up to ``most``, that NF is a multiple of."""
        return next(count for count in range(most, 0, -1) if self.model.nf % (SUBGROUP * count) == 0)

    def _map(self, number: int, name: str) -> PortSpec:
        """A port that owns a feature map."""
        return size(number, name, WRITE, self.boxes.elements)

    def _work(self, maps: int, flops: int) -> Work:
        """Declared cost of a pass that moves this many maps, with ``flops`` operations an element."""
        elements = self.model.pixels * self.model.nf
        return {"nbytes": 4 * maps * elements, "flops": flops * elements}
