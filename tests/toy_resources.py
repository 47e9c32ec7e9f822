"""Small resource files with two made-up plans, for tests of the file formats. No shader in them is real."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np

from convtrain.files.archive import TrainingArchive, open_archive
from convtrain.files.checkpoint import write_checkpoint
from convtrain.files.container import Data, sha256, write_container
from convtrain.files.package import write_package
from convtrain.graph.types import (
    Access,
    Buffer,
    Control,
    Kind,
    Pass,
    Plan,
    Port,
    Roles,
    Uniform,
    UniformField,
    Variant,
    to_json,
)

R, W, RW = Access.READ, Access.WRITE, Access.READ_WRITE
COUNT = 12  # floats in the weight buffer
SCHEDULE = {
    "warmup": 20,
    "ema_decay": 0.9,
    "improvement": 0.995,
    "patience": 10,
    "plateau_factor": 0.7,
    "plateau_floor": 0.01,
}
METRICS = {"epoch": 7, "psnr": 21.5, "psnr_u8": 21.25, "ssim": 0.75}
SLOTS = [
    {"name": "mix.0", "offset": 0, "shape": [2, 3]},
    {"name": "head.b", "offset": 8, "shape": [3]},
]


def shader(name: str) -> bytes:
    return f"shader {name} ".encode() * 40


def seed_weights() -> bytes:
    return np.arange(COUNT, dtype="<f4").tobytes()


def target() -> bytes:
    return np.random.default_rng(0).random(27, np.float32).tobytes()  # 3×3×3


def make_pass(index: int, name: str, group: str, ports: list[Port], uniform: Uniform | None = None) -> Pass:
    variants = tuple(Variant(kind, sha256(shader(f"{name} {kind}")), "main", (64, 1, 1), (3, 1, 1)) for kind in "ab")
    infer = group == "forward"
    return Pass(index, name, group, infer, group == "average", tuple(ports), variants, uniform, 64, 32, (name,))


def state_uniform(*names: str) -> Uniform:
    fields = tuple(
        UniformField(name, 4 * place, "f32" if name in ("ema", "lr") else "u32") for place, name in enumerate(names)
    )
    return Uniform(16, fields, dump=True, label="state", initial={"ema": 0.5})


OFFSETS = Uniform(16, (UniformField("ox", 0, "f32"), UniformField("oy", 4, "f32")))


def reference_plan() -> Plan:
    """Forward, loss, update: a plan whose weight buffer belongs to the first pass."""
    passes = (
        make_pass(
            0,
            "stem",
            "forward",
            [Port(0, "weights", Kind.DATA, R, "0-0"), Port(1, "h", Kind.SIZE, W, "0-1")],
            OFFSETS,
        ),
        make_pass(
            1,
            "head",
            "forward",
            [
                Port(0, "weights", Kind.SHARE, R, "0-0"),
                Port(1, "h", Kind.SHARE, R, "0-1"),
                Port(2, "out", Kind.SIZE, W, "1-2"),
            ],
        ),
        make_pass(
            2,
            "lossgrad",
            "loss",
            [
                Port(0, "out", Kind.SHARE, R, "1-2"),
                Port(1, "target", Kind.DATA, R, "2-1"),
                Port(2, "loss", Kind.SIZE, W, "2-2"),
                Port(3, "gw", Kind.SIZE, W, "2-3"),
            ],
        ),
        make_pass(
            3,
            "upd",
            "update",
            [
                Port(0, "weights", Kind.SHARE, RW, "0-0"),
                Port(1, "gw", Kind.SHARE, R, "2-3"),
                Port(2, "m", Kind.SIZE, RW, "3-2"),
            ],
            state_uniform("epoch", "ema", "lr"),
        ),
    )
    buffers = (
        Buffer("0-0", "WBuf", COUNT, seed=sha256(seed_weights()), dump=True),
        Buffer("0-1", "0-1", 30, dtype="store"),
        Buffer("1-2", "Out", 27, shape=(3, 3, 3)),
        Buffer("2-1", "target", 27, shape=(3, 3, 3), seed=sha256(target())),
        Buffer("2-2", "loss", 2, host=True),
        Buffer("2-3", "GW", COUNT),
        Buffer("3-2", "adam_m", COUNT, dump=True),
    )
    controls = {"lr": (Control(3, "lr"),), "offset_x": (Control(0, "ox"),), "offset_y": (Control(0, "oy"),)}
    roles = Roles("0-0", "2-3", "2-1", "1-2", "2-2", ("loss", "mse"), "state", (), 10, controls)
    return Plan("reference", ("f32",), passes, buffers, roles)


def fused_plan() -> Plan:
    """The update first: its pass owns the weights, so cutting it off moves numbers and owners."""
    passes = (
        make_pass(
            0,
            "upd",
            "update",
            [
                Port(0, "weights", Kind.DATA, RW, "0-0"),
                Port(1, "m", Kind.SIZE, RW, "0-1"),
                Port(2, "gw", Kind.SIZE, RW, "0-2"),
            ],
            state_uniform("lr", "epoch", "ema"),
        ),
        make_pass(
            1,
            "all",
            "forward",
            [Port(4, "weights", Kind.SHARE, R, "0-0"), Port(5, "out", Kind.SIZE, W, "1-5")],
            OFFSETS,
        ),
        make_pass(
            2,
            "lossgrad",
            "loss",
            [
                Port(0, "out", Kind.SHARE, R, "1-5"),
                Port(1, "target", Kind.DATA, R, "2-1"),
                Port(2, "loss", Kind.SIZE, W, "2-2"),
            ],
        ),
    )
    buffers = (
        Buffer("0-0", "WBuf", COUNT, seed=sha256(seed_weights()), dump=True),
        Buffer("0-1", "adam_m", COUNT, dump=True),
        Buffer("0-2", "GW", COUNT),
        Buffer("1-5", "Out", 27, shape=(3, 3, 3)),
        Buffer("2-1", "target", 27, shape=(3, 3, 3), seed=sha256(target())),
        Buffer("2-2", "loss", 2, host=True),
    )
    controls = {"offset_x": (Control(1, "ox"),), "offset_y": (Control(1, "oy"),)}
    roles = Roles("0-0", "0-2", "2-1", "1-5", "2-2", ("loss", "mse"), "state", (), 10, controls)
    return Plan("fused", ("f16", "f32"), passes, buffers, roles)


def archive_parts(**config: float) -> tuple[dict, dict[str, bytes]]:
    """The manifest and the blobs of a training archive."""
    plans = [reference_plan(), fused_plan()]
    contents = [seed_weights(), target()]
    contents += [shader(f"{item.name} {kind}") for plan in plans for item in plan.passes for kind in "ab"]
    manifest = {
        "config": {"height": 3, "width": 3, "nf": 8, "lr": 2e-3, **SCHEDULE, **config},
        "compiler": "toy-1",
        "convtrain": "0",
        "weights": {"count": COUNT, "slots": deepcopy(SLOTS)},
        "seeds": {"weights": sha256(seed_weights()), "target": sha256(target())},
        "left_out": {"quick": "no reason"},
        "plans": {plan.name: to_json(plan) for plan in plans},
    }
    return manifest, {sha256(content): content for content in contents}


def make_archive(folder: Path, **config: float) -> Path:
    path = folder / "train.res"
    manifest, blobs = archive_parts(**config)
    write_container(path, "training", manifest, blobs, raw=[sha256(target())])
    return path


def make_state(start: float = 100.0) -> dict[str, Data]:
    """A state of ``reference_plan``: epoch 7, ema 0.25, lr 0.125."""
    block = np.zeros(4, "<f4")
    block.view("<u4")[0], block[1], block[2] = 7, 0.25, 0.125
    weights = np.arange(start, start + COUNT, dtype="<f4")
    return {"WBuf": weights.tobytes(), "adam_m": (weights / 8).tobytes(), "state": block.tobytes()}


def make_checkpoint(folder: Path, archive: TrainingArchive) -> Path:
    path = folder / "checkpoint.res"
    write_checkpoint(path, archive, archive.plans["reference"], make_state(), METRICS)
    return path


def make_package(folder: Path, archive: TrainingArchive) -> Path:
    path = folder / "model.res"
    write_package(path, archive, "reference", averaged_weights(), METRICS)
    return path


def averaged_weights() -> bytes:
    return np.arange(50, 50 + COUNT, dtype="<f4").tobytes()


def make_all(folder: Path) -> dict[str, Path]:
    """One file of each kind, by kind."""
    archive_path = make_archive(folder)
    with open_archive(archive_path) as archive:
        return {
            "training": archive_path,
            "checkpoint": make_checkpoint(folder, archive),
            "model": make_package(folder, archive),
        }


def with_buffer(plan: Plan, label: str, /, **changes: object) -> Plan:
    """The plan with one buffer changed."""
    buffers = tuple(
        replace(buffer, **changes) if buffer.label == label else buffer  # type: ignore[arg-type]
        for buffer in plan.buffers
    )
    return replace(plan, buffers=buffers)
