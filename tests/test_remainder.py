"""Activations of plan `fused-f16` in 16 bits, and what they leave out in 4 more (`slang/fused/remainder.slang`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from convtrain.gpu.live.engine import Engine
from convtrain.gpu.plan import plan_execution
from convtrain.gpu.snapshot import DeviceSnapshot
from convtrain.graph.builder import READ, WRITE, Graph, Kernel, size
from cook.cache import SpirvCache
from cook.pack import pack
from cook.sources import slang_root
from live_device import device

__all__ = ["device"]

COUNT = 4096  # octets
SHADER = """
#include "fused/remainder.slang"
[[vk::binding(0, 0)]] StructuredBuffer<float> phase;
[[vk::binding(1, 0)]] RWStructuredBuffer<Octet> kept;
[[vk::binding(2, 0)]] RWStructuredBuffer<Octet> rest;
[shader("compute")] [numthreads(64, 1, 1)]
void main(uint3 id : SV_DispatchThreadID)
{
    uint4 numbers;
    Octet out = zero();
    [ForceUnroll] for (int i = 0; i < 4; i++)
    {
        uint number;
        out.word[i] = encode_pair(float2(phase[8 * id.x + 2 * i], phase[8 * id.x + 2 * i + 1]), number);
        numbers[i] = number;
    }
    kept[id.x] = out;
    rest[id.x] = remainders(pack_remainders(numbers));
}
"""


def test_an_activation_and_its_remainder(device: DeviceSnapshot, tmp_path: Path) -> None:
    if not (device.float16 and device.storage_16bit):
        pytest.skip("no fp16 storage on this device")
    (tmp_path / "activations.slang").write_text(SHADER)
    graph = Graph("activations")
    item = graph.add(
        "activations",
        Kernel("activations.slang", groups=(COUNT // 64, 1, 1)),
        group="forward",
        ports=[
            size(0, "phase", READ, 8 * COUNT, label="phase"),
            size(1, "kept", WRITE, 4 * COUNT, label="kept", dtype="u32"),
            size(2, "rest", WRITE, 4 * COUNT, label="rest", dtype="u32"),
        ],
    )
    graph.set_roles(
        weights=item[0], gradient=item[0], target=item[0], output=item[0], loss=item[0], loss_fields=("loss", "mse"),
        state="phase", average=[], average_window=10,
    )  # fmt: skip
    roots = [slang_root(), tmp_path]
    made = pack([graph], packs={}, roots=roots, cache=SpirvCache(tmp_path / "spirv"), seeds={})
    phase = np.random.default_rng(7).uniform(-40, 40, 8 * COUNT).astype(np.float32)
    phase[:4] = [0, np.pi / 2, -np.pi / 2, 3 * np.pi / 2]
    with Engine(plan_execution(device, made.plans["activations"]), made.blobs.__getitem__) as engine:
        engine.write("phase", phase.tobytes())
        engine.run((0,))
        kept, rest = np.frombuffer(engine.read("kept"), np.uint16), np.frombuffer(engine.read("rest"), np.float16)
    sine, cosine = np.sin(phase.astype(np.float64)), np.cos(phase.astype(np.float64))
    half = (kept & 0xBFFF).view(np.float16).astype(np.float64)
    assert np.abs(half - sine).max() < 2.1 / 2**13
    assert ((kept & 0x4000 != 0) == (cosine < 0))[np.abs(cosine) > 1e-5].all()
    # half a step of 1.0625 / 2^15, and the error of a sine in fp32
    assert np.abs(half + rest.astype(np.float64) - sine).max() < 1.0625 / 2**16 + 6e-6
