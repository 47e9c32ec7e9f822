"""The description of a plan: passes, ports, buffers and roles, as plain data.

Cook writes this description into the archive, run reads it back. Nothing here knows Vulkan, Slang or a
particular recipe. Every class converts to JSON-able data with :func:`to_json` and back with ``from_json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any

BufferId = str
"""``"<pass index>-<port number>"`` of the port that owns the buffer, for example ``"19-2"``."""


class Access(str, Enum):
    """What a pass does to a buffer through one port. Barriers are derived from it."""

    READ = "r"
    WRITE = "w"
    READ_WRITE = "rw"

    @property
    def reads(self) -> bool:
        return self is not Access.WRITE

    @property
    def writes(self) -> bool:
        return self is not Access.READ


class Kind(str, Enum):
    """Where the buffer behind a port comes from."""

    DATA = "data"  # this pass owns it, the host seeds it from a blob of the archive
    SIZE = "size"  # this pass owns it, device-local, zero before the first epoch
    SHARE = "share"  # another pass owns it


ELEMENT_BYTES = {"f32": 4, "u32": 4, "i32": 4, "f16": 2}
STORE = "store"
"""Element type that follows the plan's storage choice: ``f32`` or ``f16``."""

STORAGES = ("f32", "f16")
"""The choices that a plan can have for it."""

CONTROLS = {
    "lr": "f32",
    "beta1_correction": "f32",
    "beta2_correction": "f32",
    "offset_x": "f32",
    "offset_y": "f32",
    "ring_slot": "u32",
    "ring_first": "u32",
    "ring_count": "u32",
}
"""What the host can drive, with the type of field that it is written to."""


@dataclass(frozen=True)
class Port:
    """One binding of a pass (descriptor set 0, binding = ``number``)."""

    number: int
    name: str  # the variable's name in the shader
    kind: Kind
    access: Access
    buffer: BufferId


@dataclass(frozen=True)
class Buffer:
    """Device memory behind one or more ports.

    ``elements`` counts elements of ``dtype`` (a key of :data:`ELEMENT_BYTES`, or :data:`STORE`).
    ``shape`` is how ``--dump`` presents it, () for flat. ``seed`` is the SHA-256 of the blob with its first contents.
    ``dump`` marks training state: exactly those buffers are checkpointed. ``host`` asks for host-visible memory
    (a few bytes the host reads or writes every epoch).
    """

    id: BufferId
    label: str
    elements: int
    dtype: str = "f32"
    shape: tuple[int, ...] = ()
    seed: str | None = None
    dump: bool = False
    host: bool = False

    def element_bytes(self, storage: str) -> int:
        return ELEMENT_BYTES[storage if self.dtype == STORE else self.dtype]

    def nbytes(self, storage: str) -> int:
        return self.elements * self.element_bytes(storage)


@dataclass(frozen=True)
class UniformField:
    """One scalar of a uniform block, as the compiler's reflection lays it out."""

    name: str
    offset: int  # bytes
    dtype: str  # "f32" | "u32" | "i32"


@dataclass(frozen=True)
class Uniform:
    """The uniform block of a pass (descriptor set 1, binding 0); ``dump`` marks training state.

    ``label`` names the block where it is state, as ``Buffer.label`` does for buffers.
    ``initial`` holds first values of fields that do not start at zero.
    """

    size: int
    fields: tuple[UniformField, ...]
    dump: bool = False
    label: str = ""
    initial: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MatrixShape:
    """A cooperative-matrix configuration, as ``VkCooperativeMatrixPropertiesKHR`` states it."""

    m: int
    n: int
    k: int
    a: str  # component types: "f16", "f32", ...
    b: str
    c: str
    result: str
    scope: str = "subgroup"


@dataclass(frozen=True)
class Requirements:
    """What a device must offer for a variant. The defaults ask for nothing beyond Vulkan 1.1 compute."""

    matrix: MatrixShape | None = None
    subgroup_size: int | None = None  # required size; full subgroups are then requested as well
    subgroup_ops: tuple[str, ...] = ()  # "basic", "arithmetic", "shuffle", ...
    shared_bytes: int = 0
    storage_16bit: bool = False
    float16: bool = False
    memory_model: bool = False  # vulkanMemoryModel
    texels: int = 0  # in the largest buffer that it reads as texels
    capabilities: tuple[str, ...] = ()  # SPIR-V capabilities that the module declares, for checking


@dataclass(frozen=True)
class Variant:
    """One compiled way to execute a pass."""

    name: str  # "scalar", "coopmat16x16x16", ...
    spirv: str  # SHA-256 of the SPIR-V blob
    entry: str
    local: tuple[int, int, int]  # workgroup size, invocations
    groups: tuple[int, int, int]  # workgroups to dispatch
    requires: Requirements = Requirements()
    storage: str | None = None  # "f32" | "f16": only usable where the plan's storage is this one
    texel_ports: tuple[int, ...] = ()  # ports that it reads as texels of four floats, not as a storage buffer


@dataclass(frozen=True)
class Pass:
    """One compute dispatch. ``variants`` stand in order of preference, the scalar one last.

    ``nbytes`` and ``flops`` are the declared traffic and arithmetic of one execution (for reports and for
    splitting submits). ``covers`` names the reference passes whose work this pass does.
    """

    index: int
    name: str
    group: str  # "forward" | "loss" | "backward" | "update" | "average"
    infer: bool
    skip: bool  # initial state of the skip switch
    ports: tuple[Port, ...]
    variants: tuple[Variant, ...]
    uniform: Uniform | None = None
    nbytes: int = 0
    flops: int = 0
    covers: tuple[str, ...] = ()

    @property
    def state_label(self) -> str | None:
        """The label under which its uniform block is training state; None where it is none."""
        if self.uniform is None or not self.uniform.dump:
            return None
        return self.uniform.label or f"{self.index}-u"


@dataclass(frozen=True)
class Control:
    """A uniform field that the host drives: pass index and field name."""

    index: int
    field: str


@dataclass(frozen=True)
class Roles:
    """What the run phase needs to know of a plan, without knowing its passes."""

    weights: BufferId
    gradient: BufferId
    target: BufferId
    output: BufferId
    loss: BufferId
    loss_fields: tuple[str, ...]  # names of the floats in the loss buffer, "loss" and "mse" among them
    state: str  # label of the uniform (or host buffer) that carries the host state
    average: tuple[int, ...]  # passes that turn the recorded weights into their average
    average_window: int = 10  # epochs
    controls: Mapping[str, tuple[Control, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A complete pass graph: everything that one epoch dispatches, in order."""

    name: str
    storages: tuple[str, ...]  # in order of preference
    passes: tuple[Pass, ...]
    buffers: tuple[Buffer, ...]
    roles: Roles

    def buffer(self, key: str) -> Buffer:
        """The buffer with this id or label, or behind port ``"<pass>-<port>"``. Raises KeyError."""
        for candidate in self.buffers:
            if key in (candidate.id, candidate.label):
                return candidate
        for item in self.passes:
            for port in item.ports:
                if key == f"{item.index}-{port.number}":
                    return self.buffer(port.buffer)
        raise KeyError(key)


def to_json(value: Any) -> Any:
    """Plain JSON-able data from any of the classes above."""
    if value is None or type(value) in (str, int, float, bool):  # most values by far: a checkpoint converts a plan
        return value
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    return value
