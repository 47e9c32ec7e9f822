"""Packing: graphs against shaders, and the cache of compiled kernels."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import toy_recipe
from convtrain.errors import InputError, RunError
from convtrain.graph.builder import READ, READ_WRITE, WRITE, Graph, Kernel, PassSpec, PortSpec, UniformSpec, size
from convtrain.graph.parse import plan_from_json
from convtrain.graph.types import MatrixShape, Requirements, to_json
from cook import jobs
from cook.cache import SpirvCache
from cook.compiler import PROFILE, ShaderError
from cook.jobs import Job, compile_all
from cook.model import ModelConfig
from cook.pack import Packed, pack

MODEL = ModelConfig(height=6, width=5, nf=8, layers=1, ks=1, kn=1, halo=0)
SEEDS = {"weights": "w" * 64, "target": "t" * 64}


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return toy_recipe.write_sources(tmp_path / "slang")


@pytest.fixture
def cache(tmp_path: Path) -> SpirvCache:
    return SpirvCache(tmp_path / "spirv")


def packed(sources: Path, cache: SpirvCache, graphs: list[Graph] | None = None, model: ModelConfig = MODEL) -> Packed:
    graphs = toy_recipe.build(model) if graphs is None else graphs
    return pack(graphs, packs={"model": model.pack()}, roots=[sources], cache=cache, seeds=SEEDS)


def test_plan_of_the_toy_recipe(sources: Path, cache: SpirvCache) -> None:
    result = packed(sources, cache)
    plan = result.plans["reference"]
    assert plan_from_json(to_json(plan)) == plan
    scale, update = plan.passes
    assert scale.variants[0].local == (64, 1, 1)
    assert scale.variants[0].groups == (2, 1, 1)  # 90 invocations
    assert scale.uniform is None
    assert scale.infer
    assert update.variants[0].requires == Requirements(shared_bytes=128, capabilities=("Shader",))
    assert update.uniform is not None
    assert [(item.name, item.offset, item.dtype) for item in update.uniform.fields] == [
        ("epoch", 0, "u32"),
        ("lr", 4, "f32"),
    ]
    assert (update.uniform.dump, update.uniform.label, update.uniform.initial) == (True, "state", {"lr": 0.5})
    assert plan.buffer("target").seed == SEEDS["target"]
    assert {item.variants[0].spirv for item in plan.passes} == set(result.blobs)
    assert (result.kernels, result.compiled, result.warnings) == (2, 2, ())


def test_unchanged_kernels_are_not_compiled_again(sources: Path, cache: SpirvCache) -> None:
    first = packed(sources, cache)
    again = packed(sources, cache)
    assert again.compiled == 0
    assert again.plans == first.plans


def test_a_changed_constant_recompiles_only_what_uses_it(sources: Path, cache: SpirvCache) -> None:
    packed(sources, cache)
    assert packed(sources, cache, model=dataclasses.replace(MODEL, lambda_c=0.5)).compiled == 1  # cfg of update
    assert packed(sources, cache, model=dataclasses.replace(MODEL, height=7)).compiled == 1  # dims of scale
    assert packed(sources, cache, model=dataclasses.replace(MODEL, nf=16)).compiled == 1  # model of update
    assert packed(sources, cache, model=dataclasses.replace(MODEL, lr=1.0)).compiled == 0


def test_a_changed_include_recompiles_its_users(sources: Path, cache: SpirvCache) -> None:
    packed(sources, cache)
    (sources / "helpers.slang").write_text("float twice(float x) { return x + x; }\n")
    assert packed(sources, cache).compiled == 1


def test_damaged_cache_entries_are_made_again(sources: Path, cache: SpirvCache) -> None:
    first = packed(sources, cache)
    code = sorted(cache.folder.glob("*.spv"))
    assert len(code) == 2
    code[0].write_bytes(code[0].read_bytes()[:-4])
    code[1].with_suffix(".json").write_text("{}")
    again = packed(sources, cache)
    assert again.compiled == 2
    assert again.blobs == first.blobs
    assert packed(sources, cache).compiled == 0


def test_cache_entries_belong_to_their_keys(sources: Path, cache: SpirvCache) -> None:
    first = packed(sources, cache)
    for suffix in ("spv", "json"):
        one, other = sorted(cache.folder.glob(f"*.{suffix}"))
        one.rename(cache.folder / "swap")
        other.rename(one)
        (cache.folder / "swap").rename(other)
    again = packed(sources, cache)
    assert again.compiled == 2
    assert again.blobs == first.blobs


@pytest.mark.parametrize("suffix", ["spv", "json"])
def test_what_is_no_cache_entry_makes_way(sources: Path, cache: SpirvCache, suffix: str) -> None:
    first = packed(sources, cache)
    one, other = sorted(cache.folder.glob(f"*.{suffix}"))
    for path in (one, other):
        path.unlink()
    (one / "below").mkdir(parents=True)
    os.mkfifo(other)
    assert packed(sources, cache).blobs == first.blobs
    assert packed(sources, cache).compiled == 0


def test_deeply_nested_cache_entries_are_damaged_ones(sources: Path, cache: SpirvCache) -> None:
    packed(sources, cache)
    for path in cache.folder.glob("*.json"):
        path.write_text("[" * 100_000)
    assert packed(sources, cache).compiled == 2


def edited(change: Callable[[PassSpec], PassSpec], index: int) -> list[Graph]:
    graphs = toy_recipe.build(MODEL)
    graphs[0].passes[index] = change(graphs[0].passes[index])
    return graphs


def with_port(item: PassSpec, number: int, **changes: object) -> PassSpec:
    ports = tuple(dataclasses.replace(port, **changes) if port.number == number else port for port in item.ports)
    return dataclasses.replace(item, ports=ports)


def extra_port(item: PassSpec) -> PassSpec:
    spare: PortSpec = dataclasses.replace(item.ports[0], number=9, name="spare", kind=item.ports[1].kind, seed=None)
    return dataclasses.replace(item, ports=(*item.ports, dataclasses.replace(spare, elements=1, label="spare")))


def kernel(item: PassSpec, **changes: object) -> PassSpec:
    return dataclasses.replace(item, kernels=(dataclasses.replace(item.kernels[0], **changes),))


MATRIX = Requirements(matrix=MatrixShape(16, 16, 16, "f16", "f16", "f32", "f32"))


@pytest.mark.parametrize(
    ("index", "change", "complaint"),
    [
        (0, extra_port, r"pass 0 scale \(scale\.slang\): port 9 'spare' is no buffer of the shader"),
        (0, lambda p: dataclasses.replace(p, ports=p.ports[1:]), "buffer 'target' at binding 0 has no port"),
        (0, lambda p: with_port(p, 0, name="source"), "port 0 is called 'source', and 'target' in the shader"),
        (0, lambda p: with_port(p, 0, access=READ_WRITE), "'target' is declared READ_WRITE, and is a Structured"),
        (0, lambda p: with_port(p, 1, access=READ), "'scaled' is declared READ, and is a RWStructured"),
        (1, lambda p: with_port(p, 3, access=WRITE), "'weights' is declared WRITE, and the shader reads it"),
        (1, lambda p: dataclasses.replace(p, uniform=None), "has a uniform block 'controls', and the recipe does not"),
        (0, lambda p: dataclasses.replace(p, uniform=UniformSpec()), "has no uniform block, and the recipe declares"),
        (1, lambda p: dataclasses.replace(p, uniform=UniformSpec({"lr": "rate"})), "control 'lr' drives field 'rate'"),
        (1, lambda p: dataclasses.replace(p, uniform=UniformSpec({"rate": "lr"})), "no control 'rate': lr, beta1_"),
        (1, lambda p: dataclasses.replace(p, uniform=UniformSpec({"lr": "epoch"})), "is a float, and drives .*epoch"),
        (1, lambda p: dataclasses.replace(p, uniform=UniformSpec(initial={"x": 1})), "field 'x' has a first value"),
        (0, lambda p: with_port(p, 1, dtype="u32"), "port 1 'scaled' sees a buffer of u32, and is one of float32"),
        (0, lambda p: kernel(p, requires=MATRIX), "uses cooperative matrices exactly when"),
        (0, lambda p: kernel(p, threads=(0, 1, 1)), "nothing to dispatch"),
        (0, lambda p: kernel(p, source="gone.slang"), r"no shader source gone\.slang"),
        (0, lambda p: kernel(p, values={}), r"scale\.slang:2: nothing is injected into annotation 'dims'"),
        (0, lambda p: with_port(p, 0, seed="picture"), "no seed called picture"),
    ],
)
def test_recipes_that_do_not_match_their_shaders(
    sources: Path, cache: SpirvCache, index: int, change: Callable[[PassSpec], PassSpec], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        packed(sources, cache, edited(change, index))


def test_two_plans_of_one_name(sources: Path, cache: SpirvCache) -> None:
    with pytest.raises(InputError, match="same name"):
        packed(sources, cache, [*toy_recipe.build(MODEL), *toy_recipe.build(MODEL)])


def test_variants_must_share_the_uniform_block(sources: Path, cache: SpirvCache) -> None:
    other = toy_recipe.UPDATE.replace("uint epoch; float lr;", "float lr; uint epoch;")
    (sources / "other.slang").write_text(other)
    graphs = toy_recipe.build(MODEL)
    item = graphs[0].passes[1]
    second = dataclasses.replace(item.kernels[0], source="other.slang", name="other")
    graphs[0].passes[1] = dataclasses.replace(item, kernels=(item.kernels[0], second))
    with pytest.raises(InputError, match="different uniform blocks"):
        packed(sources, cache, graphs)


def test_groups_may_be_given_outright(sources: Path, cache: SpirvCache) -> None:
    graphs = edited(lambda p: kernel(p, threads=None, groups=(7, 2, 1)), 0)
    assert packed(sources, cache, graphs).plans["reference"].passes[0].variants[0].groups == (7, 2, 1)


TEXELS = """
#ifdef TEXELS
[[vk::binding(0, 0)]] Buffer<float4> values;
#else
[[vk::binding(0, 0)]] StructuredBuffer<float4> values;
#endif
[[vk::binding(1, 0)]] RWStructuredBuffer<float> sums;

[shader("compute")]
[numthreads(8, 1, 1)]
void main(uint3 id : SV_DispatchThreadID) { sums[id.x] = dot(values[id.x], float4(1)); }
"""


def texel_graph(elements: int) -> Graph:
    """One pass that reads texels, or where it must the same numbers as a storage buffer."""
    graph = Graph("texels")
    groups = (1, 1, 1)
    kernels = (
        Kernel("texels.slang", groups=groups, name="texels", defines=("TEXELS",)),
        Kernel("texels.slang", groups=groups),
    )
    ports = [size(0, "values", READ, elements), size(1, "sums", WRITE, 8)]
    item = graph.add("sum", kernels, group="forward", ports=ports)
    graph.set_roles(
        weights=item[0], gradient=item[0], target=item[0], output=item[1], loss=item[1], loss_fields=("loss", "mse"),
        state="state", average=[], average_window=1,
    )  # fmt: skip
    return graph


def test_texels_are_known_by_the_shader_s_type(sources: Path, cache: SpirvCache) -> None:
    (sources / "texels.slang").write_text(TEXELS)
    plan = packed(sources, cache, [texel_graph(32)]).plans["texels"]
    assert plan_from_json(to_json(plan)) == plan
    texels, scalar = plan.passes[0].variants
    assert (texels.texel_ports, texels.requires.texels) == ((0,), 8)
    assert texels.requires.capabilities == ("SampledBuffer", "Shader")
    assert (scalar.texel_ports, scalar.requires.texels) == ((), 0)
    with pytest.raises(InputError, match="port 0 is read in texels of four, and has 30 elements"):
        packed(sources, cache, [texel_graph(30)])


def shader_jobs(count: int) -> list[Job]:
    text = toy_recipe.SCALE.replace('#include "helpers.slang"', toy_recipe.HELPERS)
    return [Job(text.replace("COUNT = 0", f"COUNT = {n + 1}"), "main", "scale.slang", PROFILE) for n in range(count)]


def test_worker_processes_give_the_same_bytes() -> None:
    batch = shader_jobs(6)
    assert compile_all(batch, workers=2) == compile_all(batch, workers=1)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_failure_is_reported(workers: int) -> None:
    batch = shader_jobs(3)
    batch[1:1] = [Job("nonsense", "main", "bad.slang", PROFILE)]
    with pytest.raises(ShaderError, match=r"bad\.slang does not compile"):
        compile_all(batch, workers)


def test_a_dead_worker_is_a_plain_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.sys, "executable", "/bin/false")
    with pytest.raises(RunError, match="stopped working"):
        compile_all(shader_jobs(4), workers=2)


def test_a_worker_that_cannot_be_started_is_a_plain_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more_files() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(jobs, "_start_worker", no_more_files)
    with pytest.raises(RunError, match="cannot be started: Too many open files"):
        compile_all(shader_jobs(4), workers=2)
