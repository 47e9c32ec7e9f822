"""From a recipe's graphs to plans: kernels injected and compiled, ports checked against the shaders, groups counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from convtrain.errors import InputError
from convtrain.files.container import sha256
from convtrain.graph.builder import Graph, GraphError, Kernel, PassSpec
from convtrain.graph.types import CONTROLS, Buffer, Pass, Plan, Requirements, Uniform, Variant
from cook.cache import SpirvCache
from cook.compiler import MATRIX_PROFILE, PROFILE, SPIRV_ENTRY, Compiled
from cook.inject import Constants, Source, flatten, inject
from cook.jobs import Job
from cook.reflect import Reflection, UniformBlock

_MATRIX = "CooperativeMatrixKHR"
TEXEL_FLOATS = 4


class PackError(InputError):
    """A recipe and its shaders do not match. The message names plan, pass and port."""


@dataclass(frozen=True)
class Packed:
    """Plans by name in the recipe's order, the SPIR-V blobs they refer to, and what the compiler had to do and say."""

    plans: dict[str, Plan]
    blobs: dict[str, bytes]
    kernels: int  # distinct kernels
    compiled: int  # of them, compiled just now
    warnings: tuple[str, ...]


def pack(
    graphs: Sequence[Graph],
    *,
    packs: Mapping[str, Constants],
    roots: Sequence[Path],
    cache: SpirvCache,
    seeds: Mapping[str, str],
    workers: int | None = None,
) -> Packed:
    """Compile every kernel of every graph and resolve the graphs to plans.

    ``packs`` are injection packs by annotation, ``roots`` the folders of Slang sources, ``seeds`` maps seed names to
    blob hashes. Raises InputError (PackError, InjectionError, ShaderError) for a recipe or a shader that is wrong.
    """
    if len({graph.name for graph in graphs}) != len(graphs):
        raise PackError("Two plans of the recipe have the same name.")
    sources: dict[str, Source] = {}
    jobs = [_job(kernel, packs, roots, sources) for _, _, kernel in _kernels(graphs)]
    results, fresh = cache.compile(jobs, workers)
    queue = iter(results)
    plans = {graph.name: _plan(graph, queue, seeds) for graph in graphs}
    return Packed(
        plans,
        {sha256(item.spirv): item.spirv for item in results},
        len(set(jobs)),
        fresh,
        tuple(dict.fromkeys(item.warnings for item in results if item.warnings)),
    )


def _kernels(graphs: Sequence[Graph]) -> Iterator[tuple[Graph, PassSpec, Kernel]]:
    for graph in graphs:
        for item in graph.passes:
            for kernel in item.kernels:
                yield graph, item, kernel


def _job(kernel: Kernel, packs: Mapping[str, Constants], roots: Sequence[Path], sources: dict[str, Source]) -> Job:
    if kernel.source not in sources:
        sources[kernel.source] = flatten(kernel.source, roots)
    text = "".join(f"#define {name}\n" for name in kernel.defines)
    text += inject(sources[kernel.source], packs, kernel.values)
    return Job(text, kernel.entry, kernel.source, MATRIX_PROFILE if kernel.requires.matrix else PROFILE)


def _plan(graph: Graph, compiled: Iterator[Compiled], seeds: Mapping[str, str]) -> Plan:
    try:
        buffers = graph.resolve_buffers(seeds)
        known = {buffer.id: buffer for buffer in buffers}
        passes = tuple(_pass(graph, item, [next(compiled) for _ in item.kernels], known) for item in graph.passes)
        return Plan(graph.name, graph.storages, passes, buffers, graph.resolve_roles())
    except GraphError as error:
        raise PackError(f"Plan {graph.name}: {error}.") from error


def _pass(graph: Graph, item: PassSpec, compiled: Sequence[Compiled], buffers: Mapping[str, Buffer]) -> Pass:
    """``buffers`` are those of the plan, by id."""
    where = f"plan {graph.name}, pass {item.index} {item.name}"
    for kernel, result in zip(item.kernels, compiled, strict=True):
        _check_ports(f"{where} ({kernel.source})", item, result.reflection)
    ports = graph.resolve_ports(item)
    for kernel, result in zip(item.kernels, compiled, strict=True):
        _check_scalars(f"{where} ({kernel.source})", result.reflection, {p.number: buffers[p.buffer] for p in ports})
    sizes = {port.number: buffers[port.buffer].elements for port in ports}
    return Pass(
        index=item.index,
        name=item.name,
        group=item.group,
        infer=item.infer,
        skip=item.skip,
        ports=ports,
        variants=tuple(
            _variant(f"{where} ({kernel.source})", kernel, result, sizes)
            for kernel, result in zip(item.kernels, compiled, strict=True)
        ),
        uniform=_uniform(where, item, [result.reflection.uniform for result in compiled]),
        nbytes=item.nbytes,
        flops=item.flops,
        covers=item.covers,
    )


def _check_ports(where: str, item: PassSpec, seen: Reflection) -> None:
    """Ports and storage buffers agree: numbers, names, declared access; and the code does no more than declared."""
    bound = {buffer.binding: buffer for buffer in seen.buffers}
    declared = {port.number: port for port in item.ports}
    for number, port in declared.items():
        if number not in bound:
            raise PackError(f"{where}: port {number} '{port.name}' is no buffer of the shader.")
    for number, buffer in bound.items():
        if number not in declared:
            raise PackError(f"{where}: the shader's buffer '{buffer.name}' at binding {number} has no port.")
        port = declared[number]
        if port.name != buffer.name:
            raise PackError(f"{where}: port {number} is called '{port.name}', and '{buffer.name}' in the shader.")
        if port.access.writes != buffer.writable:
            kind = "RWStructuredBuffer" if buffer.writable else "StructuredBuffer"
            raise PackError(f"{where}: port {number} '{port.name}' is declared {port.access.name}, and is a {kind}.")
        if buffer.reads and not port.access.reads:
            raise PackError(f"{where}: port {number} '{port.name}' is declared WRITE, and the shader reads it.")


def _check_scalars(where: str, seen: Reflection, behind: Mapping[int, Buffer]) -> None:
    """No shader takes floats of 32 bits for integers, or integers for floats. Halves may be packed as the shader likes,
    and what its code does not touch may be declared as anything."""
    for buffer in seen.buffers:
        dtype = behind[buffer.binding].dtype
        integers = buffer.scalar.startswith(("int", "uint"))
        confused = (dtype == "f32" and integers) or (dtype in ("u32", "i32") and buffer.scalar == "float32")
        if confused and (buffer.reads or buffer.writes):
            raise PackError(
                f"{where}: port {buffer.binding} '{buffer.name}' sees a buffer of {dtype}, and is one of "
                f"{buffer.scalar} in the shader."
            )


def _variant(where: str, kernel: Kernel, compiled: Compiled, sizes: Mapping[int, int]) -> Variant:
    """``sizes`` counts the elements behind every port."""
    seen = compiled.reflection
    if kernel.groups is not None:
        groups = kernel.groups
    else:
        assert kernel.threads is not None  # Kernel checks that one of the two is given
        x, y, z = (-(-count // side) for count, side in zip(kernel.threads, seen.local, strict=True))
        groups = (x, y, z)
    if min(groups) < 1:
        raise PackError(f"{where}: nothing to dispatch, {groups} workgroups.")
    requires = _requires(where, kernel.requires, seen)
    texels = tuple(buffer.binding for buffer in seen.buffers if buffer.texels)
    for number in texels:
        if sizes[number] % TEXEL_FLOATS:
            raise PackError(f"{where}: port {number} is read in texels of four, and has {sizes[number]} elements.")
    requires = replace(requires, texels=max((sizes[number] // TEXEL_FLOATS for number in texels), default=0))
    return Variant(
        kernel.name, sha256(compiled.spirv), SPIRV_ENTRY, seen.local, groups, requires, kernel.storage, texels
    )


def _requires(where: str, declared: Requirements, seen: Reflection) -> Requirements:
    """What the recipe asks for, completed by what the module itself declares."""
    have = set(seen.capabilities)
    if (_MATRIX in have) != (declared.matrix is not None):
        raise PackError(f"{where}: a kernel uses cooperative matrices exactly when it requires a matrix shape.")
    return replace(
        declared,
        shared_bytes=max(declared.shared_bytes, seen.shared_bytes),
        capabilities=tuple(sorted({*declared.capabilities, *have})),
    )


def _uniform(where: str, item: PassSpec, blocks: Sequence[UniformBlock | None]) -> Uniform | None:
    first = blocks[0]
    if any((block and (block.size, block.fields)) != (first and (first.size, first.fields)) for block in blocks):
        raise PackError(f"{where}: its variants have different uniform blocks.")
    spec = item.uniform
    if (first is None) != (spec is None):
        found = "has no uniform block" if first is None else f"has a uniform block '{first.name}'"
        raise PackError(f"{where}: the shader {found}, and the recipe {'declares one' if spec else 'does not'}.")
    if first is None or spec is None:
        return None
    names = {field.name: field.dtype for field in first.fields}
    for control, name in spec.controls.items():
        if control not in CONTROLS:
            raise PackError(f"{where}: there is no control '{control}': {', '.join(CONTROLS)}.")
        if name not in names:
            raise PackError(f"{where}: control '{control}' drives field '{name}', which the shader does not have.")
        if CONTROLS[control] == "f32" != names[name]:
            raise PackError(f"{where}: control '{control}' is a float, and drives field '{name}' ({names[name]}).")
    for name in spec.initial:
        if name not in names:
            raise PackError(f"{where}: field '{name}' has a first value, and the shader does not have it.")
    return Uniform(first.size, first.fields, spec.dump, spec.label, dict(spec.initial))
