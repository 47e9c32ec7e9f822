"""The API a recipe uses to write down its pass list.

A recipe adds passes in the order they run, each with numbered ports, and joins ports that see the same memory::

    graph = Graph("reference")
    stem = graph.add("stem", Kernel("stem.slang", values={"dims": {"NF": 32}}, threads=(pixels, 1, 1)),
                     group="forward", infer=True,
                     ports=[share(0, "weights", READ), size(1, "h", WRITE, elements=32 * pixels)])
    graph.alias(kern[0]).to(stem[0])

A buffer has no global name: it *is* the port that owns it. Labels exist only so that people can ask for a dump.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from convtrain.graph.types import Access, Buffer, BufferId, Control, Kind, Port, Requirements, Roles

READ, WRITE, READ_WRITE = Access.READ, Access.WRITE, Access.READ_WRITE


class GraphError(ValueError):
    """A recipe that does not add up: says which pass and port, and why."""


@dataclass(frozen=True)
class Kernel:
    """One variant of a pass as a recipe declares it: which shader, with which constants, over how many threads.

    ``values`` are injected single values, by annotation name (see ``cook.inject``), ``defines`` names that the
    preprocessor knows. Exactly one of ``threads`` (invocations, rounded up to whole workgroups) and ``groups``
    (workgroups) is given.
    """

    source: str
    values: Mapping[str, Mapping[str, int | float]] = field(default_factory=dict)
    threads: tuple[int, int, int] | None = None
    groups: tuple[int, int, int] | None = None
    name: str = "scalar"
    entry: str = "main"
    requires: Requirements = Requirements()
    storage: str | None = None
    defines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.threads is None) == (self.groups is None):
            raise GraphError(f"kernel {self.source}: give either threads or groups")
        counts = self.threads or self.groups
        if not isinstance(counts, tuple) or len(counts) != 3 or any(type(count) is not int for count in counts):
            raise GraphError(f"kernel {self.source}: {counts!r} is no triple of whole numbers, as (256, 1, 1)")


@dataclass(frozen=True)
class PortSpec:
    """A port as a recipe declares it; owning ports carry their buffer's facts."""

    number: int
    name: str
    kind: Kind
    access: Access
    elements: int = 0
    label: str = ""
    dtype: str = "f32"
    shape: tuple[int, ...] = ()
    seed: str | None = None
    dump: bool = False
    host: bool = False


def share(number: int, name: str, access: Access) -> PortSpec:
    """A port that sees another pass's buffer; join it with ``alias`` or ``bcast``."""
    return PortSpec(number, name, Kind.SHARE, access)


def size(
    number: int,
    name: str,
    access: Access,
    elements: int,
    *,
    label: str = "",
    dtype: str = "f32",
    shape: tuple[int, ...] = (),
    dump: bool = False,
    host: bool = False,
) -> PortSpec:
    """A port that owns device memory, zero before the first epoch."""
    return PortSpec(number, name, Kind.SIZE, access, elements, label, dtype, shape, None, dump, host)


def data(
    number: int,
    name: str,
    access: Access,
    elements: int,
    seed: str,
    *,
    label: str = "",
    dtype: str = "f32",
    shape: tuple[int, ...] = (),
    dump: bool = False,
    host: bool = False,
) -> PortSpec:
    """A port that owns memory seeded by the host from the cooked blob called ``seed``."""
    return PortSpec(number, name, Kind.DATA, access, elements, label, dtype, shape, seed, dump, host)


@dataclass(frozen=True)
class UniformSpec:
    """The uniform block of a pass: its fields come from reflection, its meaning from the recipe.

    ``controls`` maps a control that the host drives to the block's field of that value.
    """

    controls: Mapping[str, str] = field(default_factory=dict)
    dump: bool = False
    label: str = ""
    initial: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PortRef:
    """A port of a pass of this graph: what ``pass_[number]`` gives."""

    index: int
    number: int


@dataclass(frozen=True)
class PassSpec:
    """A pass as a recipe declares it; index it by port number to join ports."""

    index: int
    name: str
    group: str
    kernels: tuple[Kernel, ...]
    ports: tuple[PortSpec, ...]
    infer: bool = False
    skip: bool = False
    uniform: UniformSpec | None = None
    nbytes: int = 0
    flops: int = 0
    covers: tuple[str, ...] = ()

    def __getitem__(self, number: int) -> PortRef:
        if all(port.number != number for port in self.ports):
            raise GraphError(f"pass {self.index} {self.name} has no port {number}")
        return PortRef(self.index, number)

    def port(self, number: int) -> PortSpec:
        return next(port for port in self.ports if port.number == number)


class _Alias:
    def __init__(self, graph: Graph, source: PortRef) -> None:
        self._graph, self._source = graph, source

    def to(self, *targets: PortRef) -> None:
        """Bind every target port to the source port's buffer."""
        for target in targets:
            self._graph._join(self._source, target)


class Graph:
    """A pass list under construction. ``resolve`` checks it and gives ports and buffers."""

    def __init__(self, name: str, storages: Sequence[str] = ("f32",)) -> None:
        self.name = name
        self.storages = tuple(storages)
        self.passes: list[PassSpec] = []
        self.roles: Roles | None = None
        self._joins: dict[PortRef, PortRef] = {}

    def add(
        self,
        name: str,
        kernels: Kernel | Iterable[Kernel],
        *,
        group: str,
        ports: Iterable[PortSpec],
        infer: bool = False,
        skip: bool = False,
        uniform: UniformSpec | None = None,
        nbytes: int = 0,
        flops: int = 0,
        covers: Iterable[str] = (),
    ) -> PassSpec:
        """Append a pass. Raises GraphError for a port number or name used twice."""
        kernels = (kernels,) if isinstance(kernels, Kernel) else tuple(kernels)
        ports = tuple(ports)
        index = len(self.passes)
        for what in ("number", "name"):
            seen = [getattr(port, what) for port in ports]
            if len(set(seen)) != len(seen):
                raise GraphError(f"pass {index} {name}: two ports share a {what}: {seen}")
        for port in ports:
            where = f"pass {index} {name}, port {port.number} {port.name}"
            if not isinstance(port.access, Access):
                raise GraphError(f"{where}: its access is {port.access!r}, none of READ, WRITE and READ_WRITE")
            if port.kind is not Kind.SHARE and port.elements < 1:
                raise GraphError(f"{where}: a buffer of {port.elements} elements")
        if not kernels:
            raise GraphError(f"pass {index} {name} has no kernel")
        made = PassSpec(
            index, name, group, kernels, ports, infer, skip, uniform, nbytes, flops, tuple(covers) or (name,)
        )
        self.passes.append(made)
        return made

    def alias(self, source: PortRef) -> _Alias:
        """``alias(src).to(dst, …)``: the destination ports see the source port's buffer."""
        return _Alias(self, source)

    def bcast(self, source: PortRef, passes: Iterable[PassSpec], *, port: int | None = None, shift: int = 0) -> None:
        """Fan a buffer out to port ``port`` (the source's number when None) of many passes.

        With ``shift`` the k-th pass (from 0) gets port ``port + k·shift``.
        """
        first = source.number if port is None else port
        for k, item in enumerate(passes):
            self._join(source, item[first + k * shift])

    def _join(self, source: PortRef, target: PortRef) -> None:
        spec = self.passes[target.index].port(target.number)
        where = f"pass {target.index} {self.passes[target.index].name}, port {target.number} {spec.name}"
        if spec.kind is not Kind.SHARE:
            raise GraphError(f"{where} owns its buffer and cannot be bound to another")
        if target in self._joins:
            raise GraphError(f"{where} is bound twice")
        if source == target:
            raise GraphError(f"{where} is bound to itself")
        self._joins[target] = source

    def _owner(self, ref: PortRef) -> PortRef:
        seen = {ref}
        while self.passes[ref.index].port(ref.number).kind is Kind.SHARE:
            if ref not in self._joins:
                item = self.passes[ref.index]
                raise GraphError(f"pass {item.index} {item.name}, port {ref.number} is shared but bound to nothing")
            ref = self._joins[ref]
            if ref in seen:
                raise GraphError(f"pass {ref.index}, port {ref.number}: the bindings run in a circle")
            seen.add(ref)
        return ref

    def buffer_id(self, ref: PortRef) -> BufferId:
        owner = self._owner(ref)
        return f"{owner.index}-{owner.number}"

    def resolve_ports(self, item: PassSpec) -> tuple[Port, ...]:
        """The pass's ports with the buffer each one sees. Raises GraphError for an unbound port or clashing access."""
        ports = tuple(
            Port(spec.number, spec.name, spec.kind, spec.access, self.buffer_id(item[spec.number]))
            for spec in item.ports
        )
        for port in ports:
            twins = [other for other in ports if other.buffer == port.buffer and other is not port]
            if twins and (port.access.writes or any(other.access.writes for other in twins)):
                raise GraphError(
                    f"pass {item.index} {item.name} sees buffer {port.buffer} through ports "
                    f"{port.number} and {twins[0].number} and writes it: use one read-write port"
                )
        return ports

    def resolve_buffers(self, blobs: Mapping[str, str]) -> tuple[Buffer, ...]:
        """Every buffer; ``blobs`` maps seed names to SHA-256.

        Raises GraphError for an unknown seed or a label used twice.
        """
        found: list[Buffer] = []
        for item in self.passes:
            for spec in item.ports:
                if spec.kind is Kind.SHARE:
                    continue
                if spec.seed is not None and spec.seed not in blobs:
                    raise GraphError(f"pass {item.index} {item.name}: no seed called {spec.seed}")
                key = f"{item.index}-{spec.number}"
                found.append(
                    Buffer(
                        key,
                        spec.label or key,
                        spec.elements,
                        spec.dtype,
                        spec.shape,
                        None if spec.seed is None else blobs[spec.seed],
                        spec.dump,
                        spec.host,
                    )
                )
        labels = [buffer.label for buffer in found]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise GraphError(f"buffer label used twice: {', '.join(twice)}")
        return tuple(found)

    def set_roles(
        self,
        *,
        weights: PortRef,
        gradient: PortRef,
        target: PortRef,
        output: PortRef,
        loss: PortRef,
        loss_fields: Sequence[str],
        state: str,
        average: Iterable[PassSpec],
        average_window: int,
    ) -> None:
        """Say which buffers and passes the run phase steers by. Controls are gathered from the passes' uniforms."""
        self.roles = Roles(
            weights=self.buffer_id(weights),
            gradient=self.buffer_id(gradient),
            target=self.buffer_id(target),
            output=self.buffer_id(output),
            loss=self.buffer_id(loss),
            loss_fields=tuple(loss_fields),
            state=state,
            average=tuple(item.index for item in average),
            average_window=average_window,
        )

    def resolve_roles(self) -> Roles:
        """The roles with every control's fields. Raises GraphError when ``set_roles`` was not called."""
        if self.roles is None:
            raise GraphError(f"plan {self.name}: set_roles was never called")
        controls: dict[str, tuple[Control, ...]] = {}
        for item in self.passes:
            for control, name in (item.uniform.controls if item.uniform else {}).items():
                controls[control] = (*controls.get(control, ()), Control(item.index, name))
        return replace(self.roles, controls=controls)
