"""What this machine is: its Vulkan device, its PyTorch, its ceilings."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from typing import Any

from bench.options import Options
from bench.processes import run
from bench.pytorch import runner as pytorch
from bench.vulkan import trainer as convtrain


@dataclass(frozen=True)
class Machine:
    """``vulkan`` and ``torch`` are None where they cannot be used; ``notes`` say why."""

    gpu: bool
    vulkan: dict[str, Any] | None
    torch: dict[str, Any] | None
    ceilings: dict[str, Any]
    notes: tuple[str, ...]
    cpu: str

    @property
    def torch_device(self) -> str:
        return (self.torch or {}).get("gpu") or self.cpu


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def _chosen(devices: list[dict[str, Any]], selector: str | None) -> dict[str, Any] | None:
    """The device that `convtrain run` would take."""
    rank = ("discrete", "integrated", "virtual", "cpu", "other")
    if selector is not None:
        named = [d for d in devices if selector == str(d["index"]) or selector.casefold() in d["name"].casefold()]
        return named[0] if named else None
    return min(devices, key=lambda device: rank.index(device["kind"]), default=None)


def look(options: Options) -> Machine:
    """Find out. Compares like with like: where only one side can use the GPU, the other is left out with a note."""
    notes, vulkan, torch = [], None, None
    if options.convtrain:
        found = convtrain.devices(options.timeout)
        vulkan = None if found.error else _chosen(found.data, options.device)
        if vulkan is None:
            notes.append(f"convtrain finds no Vulkan device: {found.error or options.device}")
    if options.torch:
        probed = pytorch.probe(options.pytorch, options.timeout)
        torch = probed.data
        if torch is None:
            notes.append(f"PyTorch is left out: {probed.error}. Install it with: pip install 'convtrain[bench]'")
    gpu = vulkan["kind"] != "cpu" if vulkan else bool(torch and torch["gpu"])
    if torch and gpu and not torch["gpu"]:
        notes.append(f"PyTorch is left out: version {torch['version']} cannot use this machine's GPU")
        torch = None
    return Machine(gpu, vulkan, torch, _ceilings(options, gpu, torch), tuple(notes), _cpu())


def _ceilings(options: Options, gpu: bool, torch: dict[str, Any] | None) -> dict[str, Any]:
    if not gpu:
        command = [sys.executable, "-m", "bench.ceilings", "cpu"]
    elif torch:
        command = [options.pytorch, "-m", "bench.ceilings", "cuda"]
    else:
        command = [sys.executable, "-m", "bench.vulkan.copy", *([options.device] if options.device else [])]
    return run(command, timeout=options.timeout).data or {}
