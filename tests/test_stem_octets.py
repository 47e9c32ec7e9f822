"""What plan `fused-f16` multiplies in layer 0 (`slang/fused/stem_octets.slang`): plane waves and their convolution."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from convtrain.gpu.live.engine import Engine
from convtrain.gpu.plan import plan_execution
from convtrain.gpu.snapshot import DeviceSnapshot
from convtrain.graph.builder import READ, WRITE, Graph, Kernel, size
from cook.cache import SpirvCache
from cook.model import ModelConfig
from cook.pack import pack
from cook.recipes.fused.forward import WAVE_NUMBERS
from cook.sources import slang_root
from live_device import device
from oracle.layout import Config, random_weights, unpack
from oracle.model import coordinates, depthwise, kernel
from scalar_parts import wave_numbers

__all__ = ["device"]

MODEL = ModelConfig(height=21, width=32, layers=2, halo=8, kn=20)  # rows of 48 pixels, 6 octets
ORIGIN = {"ORIGIN_X": MODEL.halo, "ORIGIN_Y": MODEL.halo}
SHADER = """
#include "fused/stem_octets.slang"
#include "fused/split.slang"
[[vk::binding(0, 0)]] StructuredBuffer<float> weights;
[[vk::binding(1, 0)]] StructuredBuffer<float4> waves;
[[vk::binding(2, 0)]] RWStructuredBuffer<Octet> octets; // [row][strip][NF][upper h, lower h, d]
[shader("compute")] [numthreads(1, 1, 32)]
void main(uint3 id : SV_DispatchThreadID)
{
    uint f = id.z, at = ((id.y * 6 + id.x) * model::NF + f) * 3;
    Plane plane = load_plane(weights, waves, f);
    float2 wave = wave_at(plane, middle(int(id.x), int(id.y)));
    Pixels h = pixels_of_h(plane, wave);
    Octet upper, lower;
    for (int i = 0; i < 4; i++)
    {
        upper.word[i] = upper_halves(h.pair[i]);
        lower.word[i] = lower_halves(h.pair[i]);
    }
    octets[at] = upper;
    octets[at + 1] = lower;
    octets[at + 2] = octet_of_d(plane, wave, weights[model::OFFSET_DW_B + f]);
}
"""


def test_plane_waves_in_two_halves_and_their_convolution(device: DeviceSnapshot, tmp_path: Path) -> None:
    if not (device.float16 and device.storage_16bit):
        pytest.skip("no fp16 storage on this device")
    (tmp_path / "waves.slang").write_text(SHADER)
    config = Config.of(MODEL.config())
    flat = random_weights(config, np.random.default_rng(5)).astype(np.float32).astype(np.float64)
    weights, places = unpack(flat, config), coordinates(config)
    height, width = places.shape[1:]
    graph = Graph("waves")
    item = graph.add(
        "waves",
        Kernel("waves.slang", {"region": ORIGIN}, groups=(width // 8, height, MODEL.nf // 32)),
        group="forward",
        ports=[
            size(0, "weights", READ, MODEL.weights, label="weights"),
            size(1, "waves", READ, WAVE_NUMBERS * MODEL.nf, label="waves"),
            size(2, "octets", WRITE, 3 * MODEL.nf * height * width // 2, label="octets", dtype="u32"),
        ],
    )
    graph.set_roles(
        weights=item[0], gradient=item[0], target=item[0], output=item[0], loss=item[0], loss_fields=("loss", "mse"),
        state="weights", average=[], average_window=10,
    )  # fmt: skip
    roots = [slang_root(), tmp_path]
    made = pack([graph], packs={"model": MODEL.pack()}, roots=roots, cache=SpirvCache(tmp_path / "spirv"), seeds={})
    taps = kernel(weights, config)
    with Engine(plan_execution(device, made.plans["waves"]), made.blobs.__getitem__) as engine:
        engine.write("weights", flat.astype(np.float32).tobytes())
        engine.write("waves", wave_numbers(weights, taps, MODEL).astype(np.float32).tobytes())
        engine.run((0,))
        octets = np.frombuffer(engine.read("octets"), np.float16).astype(np.float64)
    octets = octets.reshape(height, width // 8, MODEL.nf, 3, 8).transpose(3, 2, 0, 1, 4)
    upper, lower, d = octets.reshape(3, MODEL.nf, height, width)
    z = 30 * (np.einsum("kyx,fk->fyx", places, weights["stem.w"]) + weights["stem.b"][:, None, None])
    h = np.sin(z)
    assert np.abs(upper - h).max() < 2**-10
    assert np.abs(upper + lower - h).max() < 2e-5
    inner = (slice(None), *(slice(MODEL.radius, -MODEL.radius),) * 2)
    wanted = (depthwise(h, taps, config) + weights["dw.b"][:, None, None])[inner]
    np.testing.assert_allclose(d[inner], wanted, rtol=2**-11, atol=5e-5)
