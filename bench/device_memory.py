"""Peak device memory of whatever runs, as NVIDIA's driver reports it through NVML, its management library."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

PERIOD = 0.05  # seconds between two looks

Reading = Callable[[], int]
"""Gives the bytes in use on all devices."""


class _Memory(ctypes.Structure):
    """``nvmlMemory_t``"""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def driver_reading() -> Reading | None:
    """What to ask the driver with; None where there is no NVIDIA driver."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    count = ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return None
    devices = [ctypes.c_void_p() for _ in range(count.value)]
    if any(nvml.nvmlDeviceGetHandleByIndex_v2(n, ctypes.byref(device)) for n, device in enumerate(devices)):
        return None

    def used() -> int:
        memory, total = _Memory(), 0
        for device in devices:
            if nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0:
                total += memory.used
        return total

    return used


class DeviceMemory:
    """Watches memory in use from construction to ``stop``."""

    def __init__(self, reading: Reading | None) -> None:
        self._reading = reading
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        if reading is not None:
            self._base = self._peak = reading()
            self._thread.start()

    def _watch(self) -> None:
        assert self._reading is not None
        while not self._done.wait(PERIOD):
            self._peak = max(self._peak, self._reading())

    def stop(self) -> int | None:
        """The largest increase seen, in bytes; None where nobody says."""
        if self._reading is None:
            return None
        self._done.set()
        self._thread.join()
        return self._peak - self._base
