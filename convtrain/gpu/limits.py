"""Checks that a plan's buffers fit a device, before anything is allocated."""

from __future__ import annotations

import math

from convtrain.errors import InputError
from convtrain.gpu.placement import Layout, device_types
from convtrain.gpu.snapshot import DeviceSnapshot
from convtrain.graph.types import Plan

BORDER = 0.95  # of a side, less what feature maps have beyond the image, whose share grows as the image shrinks


class TooLarge(InputError):
    """A plan needs more than a device has: ``share`` of it would fit, below 1."""

    def __init__(self, need: str, plan: Plan, share: float) -> None:
        super().__init__(need + _would_fit(plan, share))
        self.share = share


def _would_fit(plan: Plan, ratio: float) -> str:
    """What to do about a need that exceeds its limit: ``ratio`` is limit / need, below 1."""
    shape = plan.buffer(plan.roles.output).shape
    advice = []
    if len(shape) == 3:
        height, width = (int(BORDER * side * math.sqrt(ratio)) for side in shape[:2])
        if min(height, width) >= 1:
            advice.append(f"an image of about {width}x{height} pixels (--size {width}x{height})")
    percent = int(100 * ratio)
    if percent >= 1:
        advice.append(f"an nf of at most {percent} % of the present one")
    return f" What would fit: {', or '.join(advice)}." if advice else " Choose a smaller image."


def check_buffers(device: DeviceSnapshot, plan: Plan, storage: str) -> None:
    """Raise TooLarge when one buffer is larger than the device can bind, create or allocate."""
    limits = device.limits
    bounds = (
        (limits.storage_range, "bind as one storage buffer (maxStorageBufferRange)"),
        (limits.buffer_size, "create as one buffer (maxBufferSize)"),
        (limits.allocation_size, "allocate at once (maxMemoryAllocationSize)"),
    )
    for buffer in sorted(plan.buffers, key=lambda item: -item.nbytes(storage)):
        need = buffer.nbytes(storage)
        for limit, what in bounds:
            if need > limit:
                raise TooLarge(
                    f"Plan {plan.name} needs {need:,} bytes for buffer {buffer.label}, and {device.title} can {what} "
                    f"at most {limit:,} bytes.",
                    plan,
                    limit / need,
                )


def check_total(device: DeviceSnapshot, plan: Plan, layout: Layout) -> None:
    """Raise TooLarge when all device buffers together exceed the device's memory, InputError when they are too many."""
    memory = device.heaps[device.memory_types[device_types(device)[0]].heap].size
    if layout.total > memory:
        raise TooLarge(
            f"Plan {plan.name} needs {layout.total:,} bytes of device memory, and {device.title} has {memory:,} bytes.",
            plan,
            memory / layout.total,
        )
    if len(layout.blocks) > device.limits.allocation_count:
        raise InputError(
            f"Plan {plan.name} needs {len(layout.blocks)} memory allocations, and {device.title} allows "
            f"{device.limits.allocation_count}. Choose a smaller image."
        )
