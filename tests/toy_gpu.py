"""A tiny training-like plan with real shaders, for tests that need a live device.

Three passes over N floats: ``scale`` (y = factor · x), ``add`` (z += y) and ``total`` (sum of z into a host buffer).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache

import numpy as np

from convtrain.graph.types import Access, Buffer, Kind, Pass, Plan, Port, Roles, Uniform, UniformField, Variant
from cook.compiler import compile_shader

R, W, RW = Access.READ, Access.WRITE, Access.READ_WRITE
COUNT = 1000
GROUPS = (COUNT + 63) // 64

SCALE = """
struct Controls { float factor; uint steps; };
[[vk::binding(0, 1)]] ConstantBuffer<Controls> controls;
[[vk::binding(0, 0)]] StructuredBuffer<float> x;
[[vk::binding(1, 0)]] RWStructuredBuffer<float> y;
[shader("compute")] [numthreads(64, 1, 1)]
void main(uint3 id : SV_DispatchThreadID) { if (id.x < 1000) y[id.x] = controls.factor * x[id.x] + controls.steps; }
"""
GRID = """
struct Controls { float factor; uint steps; };
[[vk::binding(0, 1)]] ConstantBuffer<Controls> controls;
[[vk::binding(0, 0)]] StructuredBuffer<float> x;
[[vk::binding(1, 0)]] RWStructuredBuffer<float> y;
[shader("compute")] [numthreads(64, 1, 1)]
void main(uint3 group : SV_GroupID, uint3 local : SV_GroupThreadID)
{
    uint width = controls.steps & 255, height = controls.steps >> 8;
    uint i = 64 * (group.x + width * (group.y + height * group.z)) + local.x;
    if (i < 1000) y[i] = controls.factor * x[i];
}
"""
"""``scale`` on a grid of any shape; ``steps`` holds its width and height."""
HALF = """
struct Controls { float factor; uint steps; };
[[vk::binding(0, 1)]] ConstantBuffer<Controls> controls;
[[vk::binding(0, 0)]] StructuredBuffer<float> x;
[[vk::binding(1, 0)]] RWStructuredBuffer<half> y;
[shader("compute")] [numthreads(64, 1, 1)]
void main(uint3 id : SV_DispatchThreadID) { if (id.x < 1000) y[id.x] = half(controls.factor) * half(x[id.x]); }
"""
"""``scale`` into fp16 storage, computed in fp16."""
ADD = """
[[vk::binding(0, 0)]] StructuredBuffer<float> y;
[[vk::binding(1, 0)]] RWStructuredBuffer<float> z;
[shader("compute")] [numthreads(64, 1, 1)]
void main(uint3 id : SV_DispatchThreadID) { if (id.x < 1000) z[id.x] += y[id.x]; }
"""
TOTAL = """
[[vk::binding(0, 0)]] StructuredBuffer<float> z;
[[vk::binding(3, 0)]] RWStructuredBuffer<float> loss;
groupshared float part[64];
[shader("compute")] [numthreads(64, 1, 1)]
void main(uint3 id : SV_GroupThreadID)
{
    float sum = 0;
    for (uint i = id.x; i < 1000; i += 64) sum += z[i];
    part[id.x] = sum;
    GroupMemoryBarrierWithGroupSync();
    if (id.x != 0) return;
    sum = 0;
    for (uint i = 0; i < 64; i++) sum += part[i];
    loss[0] = sum;
    loss[1] += 1;
}
"""


def seed() -> bytes:
    return np.arange(COUNT, dtype="<f4").tobytes()


@cache
def blobs() -> Mapping[str, bytes]:
    """Shaders and the seed of ``x`` by name."""
    sources = {"scale": SCALE, "grid": GRID, "half": HALF, "add": ADD, "total": TOTAL}
    return {**{name: compile_shader(text, name=name).spirv for name, text in sources.items()}, "x": seed()}


def digest(name: str) -> str:
    return hashlib.sha256(blobs()[name]).hexdigest()


def read_blob(sha: str) -> bytes:
    return {hashlib.sha256(blob).hexdigest(): blob for blob in blobs().values()}[sha]


def toy_pass(
    index: int,
    name: str,
    ports: list[Port],
    groups: int = GROUPS,
    uniform: Uniform | None = None,
    nbytes: int = 8 * COUNT,
    flops: int = COUNT,
) -> Pass:
    variant = Variant("scalar", digest(name), "main", (64, 1, 1), (groups, 1, 1))
    return Pass(index, name, "forward", True, False, tuple(ports), (variant,), uniform, nbytes, flops, (name,))


def toy_plan(nbytes: int = 8 * COUNT) -> Plan:
    """The plan of this module; ``nbytes`` is the declared traffic of ``add``, to steer how submits are cut."""
    controls = Uniform(
        8,
        (UniformField("factor", 0, "f32"), UniformField("steps", 4, "u32")),
        dump=True,
        label="state",
        initial={"factor": 2.0},
    )
    passes = (
        toy_pass(0, "scale", [Port(0, "x", Kind.DATA, R, "0-0"), Port(1, "y", Kind.SIZE, W, "0-1")], uniform=controls),
        toy_pass(1, "add", [Port(0, "y", Kind.SHARE, R, "0-1"), Port(1, "z", Kind.SIZE, RW, "1-1")], nbytes=nbytes),
        toy_pass(2, "total", [Port(0, "z", Kind.SHARE, R, "1-1"), Port(3, "loss", Kind.SIZE, RW, "2-3")], groups=1),
    )
    buffers = (
        Buffer("0-0", "x", COUNT, seed=digest("x")),
        Buffer("0-1", "y", COUNT),
        Buffer("1-1", "z", COUNT, dump=True),
        Buffer("2-3", "loss", 2, host=True),
    )
    roles = Roles("0-0", "1-1", "0-0", "1-1", "2-3", ("loss", "runs"), "state", ())
    return Plan("reference", ("f32",), passes, buffers, roles)
