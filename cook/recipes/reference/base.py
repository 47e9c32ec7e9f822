"""What the parts of a plan share: the graph under construction, sizes, and a short way to join ports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from convtrain.graph.builder import READ, Graph, Kernel, PassSpec, PortRef, PortSpec, UniformSpec, share, size
from convtrain.graph.types import Access
from cook.model import ModelConfig
from cook.recipes.cost import Cost, Work
from cook.recipes.reference.blocking import Blocking
from cook.recipes.reference.half import HalfKernels, suits

PACK = 8
"""Features that an invocation of a pixel-wise kernel takes; NF is a multiple of it."""


@dataclass(frozen=True)
class Link:
    """A shared port that sees the buffer behind ``source``."""

    spec: PortSpec
    source: PortRef


def link(number: int, name: str, access: Access, source: PortRef) -> Link:
    """A shared port, joined to its source when its pass is added."""
    return Link(share(number, name, access), source)


@dataclass(frozen=True)
class Scratch:
    """A port to a buffer that layers use one after the other: the first to run owns it. Layers agree on ``name``."""

    number: int
    name: str
    access: Access
    elements: int
    dtype: str = "f32"


def ceil_div(count: int, part: int) -> int:
    return -(-count // part)


class Base:
    """A plan under construction. Ports that other parts need become attributes as they come into being.

    The passes of ``_weight_readers`` see the weights through their port 0, and the ports of ``gradient_writers`` the
    gradient: they are joined when all are known.
    """

    weights: PortRef
    kernel: PortRef
    output: PortRef
    target: PortRef
    dl_out: PortRef
    loss: PortRef
    gradient: PortRef

    def __init__(self, model: ModelConfig) -> None:
        self.model = model
        self.half = HalfKernels(model) if suits(model) else None
        self.graph = Graph("reference", storages=("f16", "f32") if self.half else ("f32",))
        self.cost = Cost(model)
        self.cut = Blocking.of(model)
        self.planes = model.nf * model.padded_pixels  # elements of NF feature maps
        self.image = 3 * model.height * model.width
        self.image_shape = (model.height, model.width, 3)
        self._weight_readers: list[PassSpec] = []
        self.gradient_writers: list[PortRef] = []
        self._scratch: dict[tuple[str, str], PortRef] = {}

    def _add(
        self,
        name: str,
        kernels: Kernel | Sequence[Kernel],
        group: str,
        ports: Iterable[PortSpec | Link | Scratch],
        work: Work,
        *,
        infer: bool = False,
        skip: bool = False,
        uniform: UniformSpec | None = None,
        covers: Iterable[str] = (),
    ) -> PassSpec:
        """Append a pass and join its ports."""
        specs: list[PortSpec] = []
        sources: list[tuple[int, PortRef]] = []
        owned: list[Scratch] = []
        for port in ports:
            if isinstance(port, Scratch):
                owner = self._scratch.get((name, port.name))
                if owner is None:
                    owned.append(port)
                    port = size(port.number, port.name, port.access, port.elements, dtype=port.dtype)
                else:
                    port = link(port.number, port.name, port.access, owner)
            if isinstance(port, Link):
                sources.append((port.spec.number, port.source))
                port = port.spec
            specs.append(port)
        made = self.graph.add(
            name,
            self.half.before(name, kernels) if self.half else kernels,
            group=group,
            ports=specs,
            infer=infer,
            skip=skip,
            uniform=uniform,
            covers=covers,
            **work,
        )
        for number, source in sources:
            self.graph.alias(source).to(made[number])
        for scratch in owned:
            self._scratch[name, scratch.name] = made[scratch.number]
        return made

    def _add_reader(
        self,
        name: str,
        kernels: Kernel | Sequence[Kernel],
        group: str,
        ports: Iterable[PortSpec | Link | Scratch],
        work: Work,
        *,
        access: Access = READ,
        infer: bool = False,
        skip: bool = False,
        uniform: UniformSpec | None = None,
        covers: Iterable[str] = (),
    ) -> PassSpec:
        """``_add`` a pass whose port 0 is ``weights``."""
        ports = [share(0, "weights", access), *ports]
        made = self._add(name, kernels, group, ports, work, infer=infer, skip=skip, uniform=uniform, covers=covers)
        self._weight_readers.append(made)
        return made
