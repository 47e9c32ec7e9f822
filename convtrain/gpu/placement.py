"""Where every buffer lies: many buffers in few blocks of memory, each block one ``VkBuffer``.

A block is a single buffer object and a pass binds a range of it, so the only alignment that matters is the
device's offset alignment, which is known without creating anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from convtrain.gpu.snapshot import DeviceSnapshot, MemoryType

GRANULE = 256
"""Bytes; the least alignment of a buffer, so that vector and matrix loads start on a cache line everywhere."""
BLOCK_BYTES = 1 << 30
"""Preferred size of a block: small enough for any driver, large enough that there are few."""


@dataclass(frozen=True)
class Slot:
    """One buffer's (or uniform block's) place: bytes ``offset`` to ``offset + size`` of block ``block``."""

    key: str
    block: int
    offset: int
    size: int


@dataclass(frozen=True)
class Layout:
    """Sizes of the blocks in bytes, and the slots in them."""

    blocks: tuple[int, ...]
    slots: tuple[Slot, ...]

    @property
    def total(self) -> int:
        return sum(self.blocks)


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def pack(sizes: Iterable[tuple[str, int]], *, alignment: int, largest: int, granule: int = GRANULE) -> Layout:
    """Lay buffers of (key, bytes) out in order, in blocks of at most ``largest`` bytes (a larger buffer gets its own).

    ``alignment`` is the device's offset alignment in bytes, a power of two.
    """
    step = max(alignment, granule)
    blocks: list[int] = []
    slots: list[Slot] = []
    for key, size in sizes:
        span = round_up(size, step)
        number = next((n for n, used in enumerate(blocks) if used + span <= largest), len(blocks))
        if number == len(blocks):
            blocks.append(0)
        slots.append(Slot(key, number, blocks[number], size))
        blocks[number] += span
    return Layout(tuple(blocks), tuple(slots))


def block_limit(device: DeviceSnapshot) -> int:
    """The most bytes that this plan puts in one block on ``device``."""
    return min(BLOCK_BYTES, device.limits.allocation_size, device.limits.buffer_size)


def device_types(device: DeviceSnapshot, allowed: int = -1) -> list[int]:
    """Memory types for device-local buffers among the bit mask ``allowed``, best first: the largest own heap wins."""

    def rank(number: int) -> tuple[bool, int, bool, int]:
        kind = device.memory_types[number]
        return (not kind.device_local, -device.heaps[kind.heap].size, kind.host_visible, number)

    return sorted((n for n in range(len(device.memory_types)) if allowed >> n & 1), key=rank)


def host_types(device: DeviceSnapshot, allowed: int = -1) -> list[int]:
    """Memory types that the host can map without flushing, best first: cached memory before write-combined."""

    def usable(kind: MemoryType) -> bool:
        return kind.host_visible and kind.host_coherent

    def rank(number: int) -> tuple[bool, bool, int]:
        kind = device.memory_types[number]
        return (not kind.host_cached, kind.device_local, number)

    numbers = (n for n, kind in enumerate(device.memory_types) if allowed >> n & 1 and usable(kind))
    return sorted(numbers, key=rank)
