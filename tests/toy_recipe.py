"""A small recipe with shaders of its own, for tests of the cook phase: scale, then update."""

from __future__ import annotations

from pathlib import Path

from convtrain.graph.builder import READ, READ_WRITE, WRITE, Graph, Kernel, UniformSpec, data, share, size
from cook.model import ModelConfig

SCALE = """#include "helpers.slang"
// dims
namespace dims { static const int COUNT = 0; }
[[vk::binding(0, 0)]] StructuredBuffer<float> target;
[[vk::binding(1, 0)]] RWStructuredBuffer<float> scaled;
[shader("compute")]
[numthreads(64, 1, 1)]
void main(uint3 id : SV_DispatchThreadID)
{
    if (id.x < dims::COUNT) scaled[id.x] = twice(target[id.x]);
}
"""

HELPERS = "float twice(float x) { return 2 * x; }\n"

UPDATE = """// model
namespace model { static const int WEIGHTS = 0; }
// cfg
namespace cfg { static const float RATE = 0; }
struct Controls { uint epoch; float lr; };
[[vk::binding(0, 0)]] StructuredBuffer<float> scaled;
[[vk::binding(3, 0)]] RWStructuredBuffer<float> weights;
[[vk::binding(0, 1)]] ConstantBuffer<Controls> controls;
groupshared float sums[32];
[shader("compute")]
[numthreads(32, 1, 1)]
void main(uint3 id : SV_DispatchThreadID, uint local : SV_GroupIndex)
{
    sums[local] = scaled[0];
    GroupMemoryBarrierWithGroupSync();
    if (id.x < model::WEIGHTS) weights[id.x] -= controls.lr * cfg::RATE * sums[31 - local];
}
"""


def write_sources(folder: Path) -> Path:
    folder.mkdir()
    (folder / "scale.slang").write_text(SCALE)
    (folder / "helpers.slang").write_text(HELPERS)
    (folder / "update.slang").write_text(UPDATE)
    return folder


def build(model: ModelConfig) -> list[Graph]:
    graph = Graph("reference")
    count = 3 * model.height * model.width
    scale = graph.add(
        "scale",
        Kernel("scale.slang", values={"dims": {"COUNT": count}}, threads=(count, 1, 1)),
        group="forward",
        infer=True,
        ports=[
            data(0, "target", READ, count, "target", label="target"),
            size(1, "scaled", WRITE, count, label="Out", shape=(model.height, model.width, 3)),
        ],
    )
    update = graph.add(
        "update",
        Kernel("update.slang", values={"cfg": {"RATE": model.lambda_c}}, threads=(model.weights, 1, 1)),
        group="update",
        infer=True,  # the picture of a plan must come from its weights
        ports=[
            share(0, "scaled", READ),
            data(3, "weights", READ_WRITE, model.weights, "weights", label="WBuf", dump=True),
        ],
        uniform=UniformSpec(controls={"lr": "lr"}, dump=True, label="state", initial={"lr": 0.5}),
    )
    graph.alias(scale[1]).to(update[0])
    graph.set_roles(
        weights=update[3],
        gradient=update[3],
        target=scale[0],
        output=scale[1],
        loss=scale[1],
        loss_fields=("loss", "mse"),
        state="state",
        average=(),
        average_window=10,
    )
    return [graph]
