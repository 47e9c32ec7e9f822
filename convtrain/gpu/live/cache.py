"""The pipeline cache file: saves recompiling on the next start, never needed, safe to delete at any time.

Layout: one line of JSON (what device and driver wrote it, length and SHA-256 of the rest), then the driver's bytes.
Drivers check their own header, but not all of them do it well, so this one is checked first.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from convtrain.files.regular import read_regular
from convtrain.gpu.live import vk
from convtrain.gpu.live.device import Device
from convtrain.gpu.snapshot import DeviceSnapshot

_FORMAT = 1
_log = logging.getLogger(__name__)


def _identity(snapshot: DeviceSnapshot) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "device": snapshot.name,
        "vendor": snapshot.vendor_id,
        "model": snapshot.device_id,
        "driver": f"{snapshot.driver_name} {snapshot.driver_info}".strip(),
        "driver_version": snapshot.driver_version,
        "uuid": snapshot.pipeline_cache_uuid,
    }


def cache_path(folder: Path, snapshot: DeviceSnapshot) -> Path:
    """Where a device's cache lies: ``pipelines-<vendor>-<model>.cache``."""
    return folder / f"pipelines-{snapshot.vendor_id:04x}-{snapshot.device_id:04x}.cache"


def pack_cache(snapshot: DeviceSnapshot, data: bytes) -> bytes:
    """The file's bytes."""
    head = {**_identity(snapshot), "length": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return json.dumps(head, sort_keys=True).encode() + b"\n" + data


def unpack_cache(snapshot: DeviceSnapshot, content: bytes) -> bytes:
    """The driver's bytes. Raises ValueError with the reason for refusing a damaged or foreign file."""
    line, newline, data = content.partition(b"\n")
    try:
        head = json.loads(line) if newline else None
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict):
        raise ValueError("it is damaged")
    for key, value in _identity(snapshot).items():
        if head.get(key) != value:
            raise ValueError(f"it was written for another {key.replace('_', ' ')} ({head.get(key)}, here {value})")
    if head.get("length") != len(data) or head.get("sha256") != hashlib.sha256(data).hexdigest():
        raise ValueError("it is damaged")
    return data


class PipelineCache:
    """A ``VkPipelineCache``, filled from ``folder`` (None: nothing is read or written)."""

    def __init__(self, device: Device, folder: Path | None) -> None:
        self._device = device
        self._path = None if folder is None else cache_path(folder, device.snapshot)
        self._loaded = self._read()
        structs = vk.Structs()
        data = vk.ffi.new("char[]", self._loaded) if self._loaded else vk.ffi.NULL
        info = structs.new("VkPipelineCacheCreateInfo", initialDataSize=len(self._loaded), pInitialData=data)
        self.handle = device.own("VkPipelineCache", info, doing="creating the pipeline cache")

    def _read(self) -> bytes:
        if self._path is None:
            return b""
        try:
            return unpack_cache(self._device.snapshot, read_regular(self._path))
        except FileNotFoundError:
            return b""
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            _log.warning("The pipeline cache %s is not used: %s. It will be written anew.", self._path, reason)
            return b""

    def _data(self) -> bytes:
        size = vk.ffi.new("size_t *")
        call = vk.lib.vkGetPipelineCacheData
        vk.check(call(self._device.handle, self.handle, size, vk.ffi.NULL), "reading the pipeline cache")
        data = vk.ffi.new("char[]", size[0])
        vk.check(call(self._device.handle, self.handle, size, data), "reading the pipeline cache")
        return bytes(vk.ffi.buffer(data, size[0]))

    def save(self) -> bool:
        """Write the file when there is something new in it, and return whether there is: whether the driver compiled.

        A folder that cannot be written is only logged.
        """
        if self._path is None:
            return True
        data = self._data()
        if not data or data == self._loaded:
            return False
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(pack_cache(self._device.snapshot, data))
            temporary.replace(self._path)
            self._loaded = data
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            _log.warning("The pipeline cache %s could not be written: %s.", self._path, error.strerror)
        return True
