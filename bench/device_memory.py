"""Peak device memory of whatever runs, as the driver reports it."""

from __future__ import annotations

import shutil
import subprocess
import threading

PERIOD = 0.2  # seconds between two looks


def _used() -> int | None:
    """Bytes in use on all NVIDIA devices; None where there is none."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return sum(int(line) for line in found.stdout.split()) << 20
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


class DeviceMemory:
    """Watches memory in use from construction to ``stop``."""

    def __init__(self) -> None:
        self._base = self._peak = _used()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        if self._base is not None:
            self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(PERIOD):
            self._peak = max(self._peak or 0, _used() or 0)

    def stop(self) -> int | None:
        """The largest increase seen, in bytes; None where the driver does not say."""
        if self._base is None:
            return None
        self._done.set()
        self._thread.join()
        return (self._peak or 0) - self._base
