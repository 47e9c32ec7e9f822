"""Activations of plan `fused-f16`: in fixed point (`slang/fused/fixed.slang`) and in halves (`octet_f16.slang`)."""

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
HALVES = ("upper", "lower", "nearest")
SHADER = """
#include "fused/fixed.slang"
[[vk::binding(0, 0)]] StructuredBuffer<float> phase;
[[vk::binding(1, 0)]] RWStructuredBuffer<Octet> kept;
[[vk::binding(2, 0)]] RWStructuredBuffer<Octet> upper;
[[vk::binding(3, 0)]] RWStructuredBuffer<Octet> lower;
[[vk::binding(4, 0)]] RWStructuredBuffer<Octet> nearest;
[[vk::binding(5, 0)]] RWStructuredBuffer<float2> whole;
[[vk::binding(6, 0)]] RWStructuredBuffer<Octet> plain;
[shader("compute")] [numthreads(64, 1, 1)]
void main(uint3 id : SV_DispatchThreadID)
{
    Octet out = zero(), half_out = zero();
    [ForceUnroll] for (int i = 0; i < 4; i++)
    {
        float2 pair = float2(phase[8 * id.x + 2 * i], phase[8 * id.x + 2 * i + 1]);
        out.word[i] = encode_fixed(pair);
        half_out.word[i] = encode_pair(pair);
    }
    kept[id.x] = out;
    plain[id.x] = half_out;
    upper[id.x] = upper_values(out);
    lower[id.x] = lower_values(out);
    nearest[id.x] = rounded_values(out);
    [ForceUnroll] for (int i = 0; i < 4; i++) whole[4 * id.x + i] = exact_pair(out, i);
}
"""


def test_an_activation_in_16_bits(device: DeviceSnapshot, tmp_path: Path) -> None:
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
            *(size(n, name, WRITE, 4 * COUNT, label=name, dtype="u32") for n, name in enumerate(HALVES, 2)),
            size(5, "whole", WRITE, 8 * COUNT, label="whole"),
            size(6, "plain", WRITE, 4 * COUNT, label="plain", dtype="u32"),
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
        kept, plain = (np.frombuffer(engine.read(name), np.uint16) for name in ("kept", "plain"))
        whole = np.frombuffer(engine.read("whole"), np.float32)
        upper, lower, nearest = (np.frombuffer(engine.read(name), np.float16) for name in HALVES)
    sine, cosine = np.sin(phase.astype(np.float64)), np.cos(phase.astype(np.float64))
    value = (kept & 0x7FFF) / 2.0**13 - 2
    assert np.abs(value - sine).max() < 1 / 2**14 + 6e-6  # half a step, and the error of a sine in fp32
    sure = np.abs(cosine) > 1e-5
    assert ((kept & 0x8000 != 0) == (cosine < 0))[sure].all()
    assert np.abs((plain & 0xBFFF).view(np.float16) - sine).max() < 2.1 / 2**13
    assert ((plain & 0x4000 != 0) == (cosine < 0))[sure].all()
    exponents = kept >> 10 & 31  # as halves neither denormal nor NaN
    assert exponents.min() > 0
    assert exponents.max() < 31
    np.testing.assert_array_equal(whole, value)
    np.testing.assert_array_equal(upper.astype(np.float64) + lower.astype(np.float64), value)
    np.testing.assert_array_equal(nearest, value.astype(np.float16))
