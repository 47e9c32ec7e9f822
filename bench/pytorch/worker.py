"""One PyTorch measurement in its own process: ``python -m bench.pytorch.worker``, the job as JSON on stdin.

A job is ``{"problem": folder, "mode": name, "epochs": n, "seconds": s, "device": "cuda"}``, with fewer epochs where
they would take longer than ``seconds`` (null: no limit), or ``{"probe": true}`` for what this PyTorch is. The answer
is a JSON object on stdout.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()

import torch  # noqa: E402  (the time to import it counts as start-up)

IMPORTED = time.perf_counter()

import torch._inductor.compile_fx  # noqa: E402  (for compiled modes: the compiler, loaded before the job comes)

COMPILER_IMPORTED = time.perf_counter()

from bench.modes import Mode  # noqa: E402
from bench.problem import load_problem  # noqa: E402
from bench.pytorch.trainer import WARM_UP, Trainer  # noqa: E402
from bench.quality import curve_of, psnr  # noqa: E402
from bench.rows import affordable_epochs  # noqa: E402


def probe() -> dict[str, Any]:
    """This PyTorch's version and device."""
    gpu = torch.cuda.is_available()
    return {
        "version": torch.__version__,
        "gpu": torch.cuda.get_device_name() if gpu else None,
        "cudnn": torch.backends.cudnn.version() if gpu else None,
        "threads": torch.get_num_threads(),
    }


def measure(folder: Path, mode: Mode, epochs: int, limit: float | None, device: torch.device) -> dict[str, Any]:
    """Train from the start; times in seconds, memory in bytes."""
    began = time.perf_counter()
    problem, target = load_problem(folder)
    trainer = Trainer(problem, target, mode, device, epochs)
    trainer.prepare()
    if limit is not None:
        each = _timed(trainer, WARM_UP, device) / WARM_UP
        epochs = affordable_epochs(epochs, each, limit)
        trainer.start_over()
    seconds = _timed(trainer, epochs, device)
    with torch.no_grad():
        picture = trainer.picture(trainer.averaged()).permute(1, 2, 0).float().cpu().numpy()
    exact, rounded = psnr(picture, target)
    imports = (COMPILER_IMPORTED if mode.compiled else IMPORTED) - STARTED
    start_seconds = imports + time.perf_counter() - began - seconds
    return {
        "epochs": epochs,
        "seconds": seconds,
        "ms_per_epoch": 1e3 * seconds / epochs,
        "start_seconds": start_seconds,
        "psnr": exact,
        "psnr_u8": rounded,
        "curve": curve_of(trainer.history[:epochs].tolist()),
        "skipped": epochs - int(trainer.state.step.item()),
        "memory": _peak_memory(device),
    }


def _timed(trainer: Trainer, epochs: int, device: torch.device) -> float:
    """Seconds that these epochs take."""
    _wait(device)
    started = time.perf_counter()
    trainer.train(epochs)
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated())
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    job = json.loads(sys.stdin.read())
    if job.get("probe"):
        print(json.dumps(probe()))
        return
    device = torch.device(job["device"])
    mode, epochs, limit = Mode.parse(job["mode"]), int(job["epochs"]), job["seconds"]
    print(json.dumps(measure(Path(job["problem"]), mode, epochs, limit, device)))


if __name__ == "__main__":
    main()
