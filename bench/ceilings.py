"""What a device does at best, measured on the spot: ``python -m bench.ceilings cuda|cpu``, a JSON object on stdout.

The GPU's with torch, the CPU's with NumPy.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

REPEATS = 10
CPU_COPY_BYTES, CPU_SIDE = 256 << 20, 2048
GPU_COPY_BYTES, GPU_SIDE = 4 << 30, 8192


def best_time(action: Callable[[], object], repeats: int = REPEATS) -> float:
    """Seconds of the fastest of some runs, after one that warms up."""
    action()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return min(times)


def _gpu() -> dict[str, Any]:
    import torch

    free, _ = torch.cuda.mem_get_info()
    size = min(GPU_COPY_BYTES, free // 4)
    source = torch.ones(size // 4, device="cuda")
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize()

    def multiply() -> None:
        torch.mm(a, b, out=c)
        torch.cuda.synchronize()

    a, b, c = (torch.randn(GPU_SIDE, GPU_SIDE, device="cuda", dtype=torch.float16) for _ in range(3))
    return {
        "copy_bytes_per_second": 2 * size / best_time(copy),
        "matrix_flops_per_second": 2 * GPU_SIDE**3 / best_time(multiply),
        "how": f"torch: copy of {size >> 20} MiB, fp16 product of side {GPU_SIDE}, on {torch.cuda.get_device_name()}",
    }


def _cpu() -> dict[str, Any]:
    source = np.ones(CPU_COPY_BYTES // 4, np.float32)
    target = np.empty_like(source)
    copy = best_time(lambda: np.copyto(target, source))
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((CPU_SIDE, CPU_SIDE), np.float32) for _ in range(2))
    product = best_time(lambda: a @ b, 3)
    return {
        "copy_bytes_per_second": 2 * CPU_COPY_BYTES / copy,
        "matrix_flops_per_second": 2 * CPU_SIDE**3 / product,
        "how": f"NumPy on the CPU: copy of {CPU_COPY_BYTES >> 20} MiB, fp32 product of side {CPU_SIDE}",
    }


def main() -> None:
    print(json.dumps(_gpu() if sys.argv[1:] == ["cuda"] else _cpu()))


if __name__ == "__main__":
    main()
