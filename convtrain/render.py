"""Draw a model package's picture, at its own size or an integer multiple of it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from convtrain.errors import InputError
from convtrain.files.package import ModelPackage, open_package
from convtrain.gpu.live.engine import Engine
from convtrain.gpu.live.instance import choose_device
from convtrain.gpu.plan import ExecutionPlan, choose_plan, plan_execution
from convtrain.gpu.snapshot import DeviceSnapshot
from convtrain.gpu.switches import Switches
from convtrain.train.stepper import set_control


def sample_offsets(scale: int) -> NDArray[np.float64]:
    """Sub-pixel offsets, in pixels, of the ``scale`` samples across one pixel: (a + 0.5) / scale − 0.5."""
    return (np.arange(scale) + 0.5) / scale - 0.5


def _choose(package: ModelPackage, snapshot: DeviceSnapshot, plan: str, switches: Switches) -> ExecutionPlan:
    """For ``auto``, the plan that was trained, so that the picture is the one that was measured, if the device can."""
    if plan == "auto" and switches.plan is None and package.plan in package.plans:
        try:
            return plan_execution(snapshot, package.plans[package.plan], switches)
        except InputError:
            pass  # trained on another kind of device
    return choose_plan(snapshot, package.plans, switches, plan)[0]


def render(model: Path, *, scale: int = 1, device: str | None = None, plan: str = "auto") -> NDArray[np.float32]:
    """The (scale·H, scale·W, 3) picture, unclamped.

    The same passes run once per sub-pixel offset and their outputs are interleaved. Raises InputError for a
    file that is not a model package, or a device that cannot hold it.
    """
    switches = Switches.from_environment(os.environ)
    with open_package(model) as package:
        snapshot = choose_device(device)
        execution = _choose(package, snapshot, plan, switches)
        active = tuple(item.index for item in execution.plan.passes)
        height, width = package.height, package.width
        picture = np.empty((height, scale, width, scale, 3), np.float32)
        with Engine(execution, package.blob, cache_dir=None) as engine:
            for b, offset_y in enumerate(sample_offsets(scale)):
                for a, offset_x in enumerate(sample_offsets(scale)):
                    set_control(engine, execution.plan, "offset_x", offset_x)
                    set_control(engine, execution.plan, "offset_y", offset_y)
                    engine.run(active)
                    output = np.frombuffer(engine.read(execution.plan.roles.output), np.float32)
                    picture[:, b, :, a] = output.reshape(height, width, 3)
        return picture.reshape(height * scale, width * scale, 3)
