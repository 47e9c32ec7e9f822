"""Everything a run holds open, in one place: archive, lock, checkpoint, device, plan, engine."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convtrain.errors import InputError, RunError
from convtrain.files.archive import ARCHIVE_NAME, TrainingArchive, open_archive
from convtrain.files.checkpoint import CHECKPOINT_NAME, Checkpoint, open_checkpoint, write_checkpoint
from convtrain.files.lock import folder_lock
from convtrain.files.manifest import fits
from convtrain.gpu.live.engine import Engine
from convtrain.gpu.live.instance import choose_device
from convtrain.gpu.plan import ExecutionPlan, Rejected, choose_plan
from convtrain.gpu.snapshot import DeviceSnapshot
from convtrain.gpu.switches import Switches
from convtrain.graph.types import Plan
from convtrain.train.metrics import Metrics, Picture, psnr, to_u8
from convtrain.train.schedule import ScheduleConfig
from convtrain.train.selftest import REFERENCE, verdict
from convtrain.train.state import device_state, host_state, read_state, write_state
from convtrain.train.stepper import DeviceStepper, HostStepper, Run, Stepper, read_loss


@dataclass(frozen=True)
class Capture:
    """The state of training after an epoch, copied from the device: what a checkpoint is made of."""

    epoch: int
    state: Mapping[str, bytes]
    picture: Picture
    target: Picture
    ssim: float | None

    def metrics(self) -> Metrics:
        rounded = to_u8(self.picture) / 255.0
        return Metrics(self.epoch, psnr(self.picture, self.target), psnr(rounded, self.target), self.ssim)


@dataclass(frozen=True)
class SessionOptions:
    """What the command line decides about a session."""

    folder: Path  # res_train
    device: str | None = None
    plan: str = "auto"
    fresh: bool = False


class Session:
    """An archive on a device, restored to where the last run stopped. A context manager.

    Raises InputError for a missing or damaged archive, another archive's checkpoint, an unknown device or
    plan, a folder that another run is using, or an image that the device cannot hold.
    """

    def __init__(self, options: SessionOptions) -> None:
        self.folder = options.folder
        self._resources = ExitStack()
        try:
            self._open(options)
        except BaseException:
            self.close()
            raise

    def _open(self, options: SessionOptions) -> None:
        keep = self._resources.enter_context
        if self.folder.is_file():
            raise InputError(f"{self.folder} is a file: give the folder that holds the archive.")
        if (self.folder / ARCHIVE_NAME).exists():
            keep(folder_lock(self.folder))  # before reading: a cook may be about to replace the archive
        self.archive: TrainingArchive = keep(open_archive(self.folder))
        self._schedule = self._read_config()
        saved: Checkpoint | None = None
        if not options.fresh and self.checkpoint_path.exists():
            saved = keep(open_checkpoint(self.checkpoint_path, self.archive))
        switches = Switches.from_environment(os.environ)
        snapshot = choose_device(options.device)
        self.execution: ExecutionPlan
        self.passed_over: tuple[Rejected, ...]  # plans that would have been better
        cache_dir = self.folder / "pipelines"
        self.execution, self.passed_over = self._choose(snapshot, switches, options.plan, cache_dir)
        self.engine: Engine = keep(Engine(self.execution, self.archive.blob, cache_dir=cache_dir))
        self.plan: Plan = self.execution.plan
        self._host_state = host_state(self.engine, self.plan)
        if saved is not None:
            write_state(self.engine, self.plan, saved.restore(self.plan))

    def _read_config(self) -> ScheduleConfig:
        """The schedule. Raises InputError for a configuration that is none, or of another image than the plans'."""
        try:
            schedule = ScheduleConfig.from_config(self.config)
        except ValueError as error:
            raise self._unusable(f"in its configuration, {error}") from None
        size: list[Any] = [self.config.get(name) for name in ("height", "width")]
        for plan in self.archive.plans.values():
            for role in (plan.roles.output, plan.roles.target):
                if not (role and fits(size, list[int]) and plan.buffer(role).nbytes("f32") == 12 * math.prod(size)):
                    raise self._unusable(f"its configuration has another image size than plan {plan.name}")
        return schedule

    def _unusable(self, why: str) -> InputError:
        return InputError(f"{self.archive.path} cannot be used: {why}. Cook again.")

    def _choose(
        self, snapshot: DeviceSnapshot, switches: Switches, wanted: str, cache_dir: Path
    ) -> tuple[ExecutionPlan, tuple[Rejected, ...]]:
        """The best plan that passes its self-test. Raises RunError where no plan of the wanted name does."""
        plans, failed = dict(self.archive.plans), list[Rejected]()
        while True:
            try:
                execution, passed_over = choose_plan(snapshot, plans, switches, wanted, self.archive.left_out)
            except InputError:
                if not failed:
                    raise
                name, (why,) = failed[-1].name, failed[-1].reasons
                advice = f"Use --plan {REFERENCE}, and report this with `convtrain devices`."
                raise RunError(f"Plan {name}: {why} {advice}") from None
            failure = verdict(execution, self.archive, cache_dir)
            if failure is None:
                return execution, (*failed, *passed_over)
            name = execution.plan.name
            if name == REFERENCE:  # on fp16 storage: its fp32 kernels are the measure of all others
                failed.append(Rejected(f"{name} on {execution.storage} storage", (failure,)))
                switches = replace(switches, no_coopmat=True, no_fp16=True)
            else:
                failed.append(Rejected(name, (failure,)))
                del plans[name]

    @property
    def checkpoint_path(self) -> Path:
        return self.folder / CHECKPOINT_NAME

    def describe(self) -> str:
        """One line: device, driver, plan, storage, and how many passes run which variant."""
        execution, device = self.execution, self.execution.snapshot
        variants = ", ".join(f"{count} {name}" for name, count in execution.variant_classes().items())
        line = (
            f"{device.name}, {device.driver_name} {device.driver_info}: plan {self.plan.name}, "
            f"{execution.storage} storage, {len(self.plan.passes)} passes ({variants})"
        )
        for plan in self.passed_over:
            line += f"\nnot plan {plan.name}: {' '.join(plan.reasons)}"
        return line

    @property
    def config(self) -> Mapping[str, Any]:
        return self.archive.config

    @property
    def epoch(self) -> int:
        """Epochs that this model has behind it, over all runs."""
        state = device_state(self.engine, self.plan) if self._host_state is None else self._host_state
        return int(state["epoch"])

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return int(self.config["height"]), int(self.config["width"]), 3

    def stepper(self, run: Run | None = None) -> Stepper:
        """What advances training; ``run`` replaces the engine's own, to time every epoch's passes."""
        schedule = self._schedule
        if self._host_state is None:
            return DeviceStepper(self.engine, self.plan, schedule, run or self.engine.run)
        return HostStepper(self.engine, self.plan, schedule, self._host_state, run or self.engine.run)

    def picture(self) -> NDArray[np.float32]:
        """The network's latest output, (H, W, 3)."""
        return np.frombuffer(self.engine.read(self.plan.roles.output), np.float32).reshape(self.image_shape)

    @cached_property
    def target(self) -> NDArray[np.float32]:
        """The image being learned, (H, W, 3)."""
        return np.frombuffer(self.engine.read(self.plan.roles.target), np.float32).reshape(self.image_shape)

    def capture(self) -> Capture:
        """Copy from the device what a checkpoint holds: raw weights, all state, the last epoch's output.

        Raises RunError when a weight is not finite: such a state is never written.
        """
        state = read_state(self.engine, self.plan)
        weights = np.frombuffer(state[self.plan.buffer(self.plan.roles.weights).label], np.float32)
        if not np.isfinite(weights).all():
            raise RunError(
                f"Training diverged at epoch {self.epoch}: some weights are not finite. They were not saved; "
                f"what was saved before is kept. Cook with a lower lr (--set lr=…)."
            )
        has_ssim = min(self.image_shape[:2]) >= 11
        ssim = read_loss(self.engine, self.plan)["ssim"] if has_ssim else None
        return Capture(self.epoch, state, self.picture(), self.target, ssim)

    def write(self, capture: Capture) -> None:
        """Write a checkpoint. Touches nothing of the device: any thread may do it, while training goes on.

        Its metrics are those of the last epoch's output, before that epoch's update. Raises RunError when the disk is
        full (the old checkpoint stays).
        """
        write_checkpoint(self.checkpoint_path, self.archive, self.plan, capture.state, capture.metrics().to_json())

    def close(self) -> None:
        self._resources.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
