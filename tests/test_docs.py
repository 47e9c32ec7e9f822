"""The worked example of docs/adding-a-pass.md, executed as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from convtrain.files.container import sha256
from convtrain.gpu.live.engine import Engine
from convtrain.gpu.live.instance import choose_device
from convtrain.gpu.plan import plan_execution
from convtrain.graph.builder import Graph
from cook.cache import SpirvCache
from cook.model import ModelConfig
from cook.pack import pack
from cook.recipes.reference import Reference
from cook.seeds import draw_weights
from cook.sources import slang_root
from oracle.layout import Array
from workspace import ROOT, photograph

PAGE = (ROOT / "docs" / "adding-a-pass.md").read_text(encoding="utf-8")
MODEL = ModelConfig(height=6, width=5, nf=8, layers=1, ks=3, kn=4, halo=3)
LR, RATE = 0.01, 0.1


def block(language: str) -> str:
    """The page's one code block in this language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def weights_after_an_epoch(graph: Graph, folder: Path) -> Array:
    """The weight buffer after one epoch from the seeds, on the default device."""
    target = (photograph(MODEL.width, MODEL.height) / np.float32(255)).astype(np.float32)
    contents = {"weights": draw_weights(MODEL).tobytes(), "target": target.tobytes()}
    seeds = {name: sha256(content) for name, content in contents.items()}
    made = pack(
        [graph],
        packs={"model": MODEL.pack()},
        roots=[folder, slang_root()],
        cache=SpirvCache(folder / "spirv"),
        seeds=seeds,
    )
    blobs = {**made.blobs, **{seeds[name]: content for name, content in contents.items()}}
    plan = made.plans["reference"]
    with Engine(plan_execution(choose_device(None), plan), blobs.__getitem__) as engine:
        for name, value in (("lr", LR), ("beta1_correction", 0.1), ("beta2_correction", 0.001)):
            for control in plan.roles.controls[name]:
                engine.uniform(control.index)[control.field] = value
        engine.run(tuple(item.index for item in plan.passes if not item.skip))
        return np.frombuffer(engine.read("WBuf"), np.float32)


def test_the_example_decays_the_mixing_matrices_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "decay.slang").write_text(block("slang"), encoding="utf-8")
    module: dict[str, type[Reference]] = {}
    exec(block("python"), module)
    plain = weights_after_an_epoch(Reference(MODEL).build(), tmp_path)
    decayed = weights_after_an_epoch(module["Decayed"](MODEL).build(), tmp_path)
    mix = MODEL.slot("mix.0")
    inside = slice(mix.offset, mix.offset + mix.size)
    np.testing.assert_allclose(decayed[inside], plain[inside] * (1 - LR * RATE), rtol=1e-6)
    outside = np.delete(plain, inside)
    assert (np.delete(decayed, inside) == outside).all()
