"""Plan `fused-f16` where nothing has matrix units: its matrix kernels do nothing here, unless they have a stand-in in
plain arithmetic; the others can be run one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from convtrain.gpu.live.engine import Engine
from convtrain.gpu.plan import plan_execution
from convtrain.gpu.snapshot import DeviceSnapshot
from convtrain.graph.builder import Kernel, PassSpec
from convtrain.graph.types import Plan
from cook.cache import SpirvCache
from cook.model import ModelConfig
from cook.pack import pack
from cook.recipes.fused import Fused, tiles
from cook.recipes.fused.base import HALF
from cook.recipes.fused.forward import WAVE_NUMBERS
from cook.recipes.fused.regions import Regions
from cook.sources import slang_root

Array = NDArray[np.float64]
STAND_INS = Path(__file__).parent / "stand_ins"


def _idle(item: PassSpec, folder: Path) -> Kernel:
    """A kernel with the ports of a pass that does nothing."""
    lines = [
        f"[[vk::binding({port.number}, 0)]] {'RW' if port.access.writes else ''}StructuredBuffer<uint> {port.name};"
        for port in item.ports
    ]
    lines.append('[shader("compute")] [numthreads(1, 1, 1)] void main() {}')
    (folder / f"idle{item.index}.slang").write_text("\n".join(lines))
    return Kernel(f"idle{item.index}.slang", groups=(1, 1, 1))


def _without_matrices(item: PassSpec, folder: Path) -> PassSpec:
    """The pass with what to run instead of a matrix kernel."""
    if not (STAND_INS / f"{item.name}.slang").exists():
        return replace(item, kernels=(_idle(item, folder),), uniform=None)
    kernel = item.kernels[0]
    values = {name: kernel.values[name] for name in ("geometry", "region") if name in kernel.values}
    groups = (int(values["region"].get("SLICES", values["region"]["TILES"])), 1, 1)
    kernel = replace(kernel, source=f"{item.name}.slang", values=values, groups=groups, name="half", requires=HALF)
    return replace(item, kernels=(kernel,))


class ScalarParts:
    """The plan on a device; buffers go by pass and port: ``parts.read("operands", 1)``. Of several passes the first
    counts.

    With ``only``, just these passes have their kernels.
    """

    def __init__(
        self, model: ModelConfig, device: DeviceSnapshot, folder: Path, only: Collection[str] | None = None
    ) -> None:
        recipe = Fused(model)
        graph = recipe.build()
        for number, item in enumerate(graph.passes):
            if only and item.name not in only:
                graph.passes[number] = replace(item, kernels=(_idle(item, folder),), uniform=None)
            elif item.kernels[0].requires.matrix:
                graph.passes[number] = _without_matrices(item, folder)
        seeds = {"weights": "0" * 64, "target": "1" * 64}
        made = pack(
            [graph],
            packs={"model": model.pack()},
            roots=[slang_root(), STAND_INS, folder],
            cache=SpirvCache(folder),
            seeds=seeds,
        )
        blobs: Mapping[str, bytes] = {
            **made.blobs,
            seeds["weights"]: bytes(4 * model.weights),
            seeds["target"]: bytes(12 * model.height * model.width),
        }
        self.plan: Plan = made.plans["fused-f16"]
        self.model, self.regions = model, recipe.regions
        self.engine = Engine(plan_execution(device, self.plan), blobs.__getitem__)

    def find(self, name: str) -> int:
        return next(item.index for item in self.plan.passes if item.name == name)

    def buffer(self, name: str, port: int) -> str:
        return self.plan.buffer(f"{self.find(name)}-{port}").id

    def run(self, *names: str) -> None:
        self.engine.run(tuple(sorted(self.find(name) for name in names)))

    def control(self, name: str, value: float) -> None:
        """Drives a control as the host does."""
        for control in self.plan.roles.controls[name]:
            self.engine.uniform(control.index)[control.field] = value

    def read(self, name: str, port: int, dtype: type = np.float32) -> NDArray[np.generic]:
        return np.frombuffer(self.engine.read(self.buffer(name, port)), dtype)

    def write(self, name: str, port: int, values: NDArray[np.generic]) -> None:
        self.engine.write(self.buffer(name, port), np.ascontiguousarray(values).tobytes())

    def write_weights(self, weights: Array) -> None:
        self.engine.write("WBuf", weights.astype(np.float32).tobytes())

    def read_map(self, name: str, port: int) -> NDArray[np.uint16]:
        return unpack_map(self.read(name, port, np.uint16), self.regions, self.model.nf)

    def write_map(self, name: str, port: int, bits: NDArray[np.uint16]) -> None:
        """``bits``: (feature, row, column) of the whole map."""
        self.write(name, port, pack_map(bits, self.regions))

    def map_shape(self) -> tuple[int, int, int]:
        return self.model.nf, 4 * self.regions.bands, 16 * self.regions.pairs


@contextmanager
def tiled_parts(
    model: ModelConfig, device: DeviceSnapshot, folder: Path, only: Collection[str]
) -> Iterator[ScalarParts]:
    """Passes of a small model whose layer 0 has kernels by tiles all the same. Skips where there is no fp16."""
    if not (device.float16 and device.storage_16bit):
        pytest.skip("no fp16 storage on this device")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "SMALLEST_SIDE", 1)
        made = ScalarParts(model, device, folder, only)
    yield made
    made.engine.close()


def unpack_map(stored: NDArray[np.generic], regions: Regions, features: int) -> NDArray[np.uint16]:
    """A stored map as (feature, row, column)."""
    blocks = stored.view(np.uint16).reshape(regions.pairs, regions.bands, features, 2, 4, 8)
    pixels: NDArray[np.uint16] = blocks.transpose(2, 1, 4, 0, 3, 5)
    return pixels.reshape(features, 4 * regions.bands, 16 * regions.pairs)


def pack_map(bits: NDArray[np.uint16], regions: Regions) -> NDArray[np.uint16]:
    """The inverse of :func:`unpack_map`."""
    return bits.reshape(len(bits), regions.bands, 4, regions.pairs, 2, 8).transpose(3, 1, 0, 4, 2, 5)


def wave_numbers(weights: Mapping[str, Array], taps: Array, model: ModelConfig) -> Array:
    """What ``operands`` keeps of every plane wave: see ``slang/fused/wave.slang``."""
    reach = np.arange(-model.radius, model.radius + 1)
    along, down = weights["stem.w"].T * (60 / max(model.height, model.width))
    step = along[:, None, None] * reach + down[:, None, None] * reach[:, None]
    turns = along[:, None] * (np.arange(4) + 0.5)
    numbers = np.zeros((model.nf, WAVE_NUMBERS))
    numbers[:, 0], numbers[:, 1] = (taps * np.cos(step)).sum(axis=(1, 2)), (taps * np.sin(step)).sum(axis=(1, 2))
    numbers[:, 2:10:2], numbers[:, 3:10:2] = np.cos(turns), np.sin(turns)
    return numbers
