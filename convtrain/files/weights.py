"""Where each weight tensor lies in the one weight buffer."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from convtrain.files.container import Container, Data
from convtrain.files.manifest import entry, fits, unusable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Slot:
    """One tensor: ``offset`` in floats from the start of the buffer, row-major ``shape``."""

    name: str
    offset: int
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class WeightLayout:
    """``count`` floats in all; slots may leave some of them unused."""

    count: int
    slots: tuple[Slot, ...]

    @property
    def nbytes(self) -> int:
        return 4 * self.count

    def to_json(self) -> dict[str, Any]:
        slots = [{"name": slot.name, "offset": slot.offset, "shape": list(slot.shape)} for slot in self.slots]
        return {"count": self.count, "slots": slots}

    def split(self, data: Data) -> dict[str, NDArray[np.float32]]:
        """Read-only views, by slot name and in its shape, of a buffer of ``count`` little-endian float32.

        Raises ValueError when ``data`` has another length.
        """
        import numpy as np  # only export needs it: `info` starts faster without

        if len(data) != self.nbytes:
            raise ValueError(f"{len(data)} bytes of weights instead of {self.nbytes}")
        flat = np.frombuffer(data, dtype="<f4")
        return {slot.name: flat[slot.offset : slot.offset + slot.elements].reshape(slot.shape) for slot in self.slots}


def read_layout(container: Container) -> WeightLayout:
    """The manifest's weight layout. Raises InputError for one that does not add up."""
    data = entry(container, "weights", dict[str, Any])
    try:
        slots = tuple(Slot(item["name"], item["offset"], tuple(item["shape"])) for item in data["slots"])
        layout = WeightLayout(data["count"], slots)
    except (KeyError, TypeError):
        raise unusable(container, "has no valid 'weights'") from None
    if not fits(layout, WeightLayout) or layout.count < 1:
        raise unusable(container, "has no valid 'weights'")
    for slot in slots:
        if min((*slot.shape, 1)) < 1 or slot.offset < 0 or slot.offset + slot.elements > layout.count:
            raise unusable(container, f"puts the weights {slot.name!r} outside their buffer")
    if len({slot.name for slot in slots}) != len(slots):
        raise unusable(container, "names two weight slots alike")
    return layout
