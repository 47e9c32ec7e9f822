"""What a compiled kernel looks like from outside: buffers, uniform block, workgroup size, needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from convtrain.graph.types import UniformField
from cook import spirv

SCALARS = {"float32": "f32", "uint32": "u32", "int32": "i32"}
BUFFER_SET = 0
UNIFORM_SET = 1
TEXELS = "textureBuffer"
BUFFER_SHAPES = ("structuredBuffer", TEXELS)


class ReflectionError(ValueError):
    """A kernel whose interface convtrain cannot use. The message says which variable, and why."""


@dataclass(frozen=True)
class BufferBinding:
    """A buffer of descriptor set 0. ``writable`` as declared; ``reads`` and ``writes`` as the code does.

    ``scalar`` is what its elements consist of, such as ``float32`` also for ``float4``; "" for a struct.
    ``texels``: read through a view of texels of four floats (``Buffer<float4>``), not as a storage buffer.
    """

    name: str
    binding: int
    writable: bool
    reads: bool
    writes: bool
    scalar: str
    texels: bool = False


@dataclass(frozen=True)
class UniformBlock:
    """The uniform block (descriptor set 1, binding 0): size in bytes and scalar fields."""

    name: str
    size: int
    fields: tuple[UniformField, ...]


@dataclass(frozen=True)
class Reflection:
    """The interface of one kernel."""

    local: tuple[int, int, int]  # workgroup size, invocations
    buffers: tuple[BufferBinding, ...]  # by binding
    uniform: UniformBlock | None
    capabilities: tuple[str, ...]
    shared_bytes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Reflection:
        """The inverse of ``to_json``. Raises KeyError, TypeError or ValueError on foreign data."""
        block = data["uniform"]
        x, y, z = data["local"]
        return Reflection(
            (int(x), int(y), int(z)),
            tuple(BufferBinding(**item) for item in data["buffers"]),
            None
            if block is None
            else UniformBlock(block["name"], block["size"], tuple(UniformField(**item) for item in block["fields"])),
            tuple(data["capabilities"]),
            int(data["shared_bytes"]),
        )


def reflect(layout: bytes, code: bytes) -> Reflection:
    """Combine the compiler's JSON reflection of a single-entry program with what its SPIR-V says.

    Raises ReflectionError for parameters other than storage buffers in set 0 and one block at set 1, binding 0.
    """
    data = json.loads(layout)
    uses = spirv.uses(code)
    buffers: list[BufferBinding] = []
    uniform: UniformBlock | None = None
    for item in data.get("parameters", []):
        name, kind = item["name"], item["type"]["kind"]
        where = item.get("binding", {})
        if where.get("kind") != "descriptorTableSlot":
            raise ReflectionError(f"global variable {name} has no descriptor binding")
        space, index = where.get("space", 0), where["index"]
        if kind == "constantBuffer":
            if (space, index) != (UNIFORM_SET, 0) or uniform is not None:
                raise ReflectionError(f"uniform block {name} must be the only one, at [[vk::binding(0, 1)]]")
            uniform = _uniform_block(name, item["type"])
        elif kind == "resource" and item["type"].get("baseShape") in BUFFER_SHAPES:
            if space != BUFFER_SET:
                raise ReflectionError(f"storage buffer {name} must be in descriptor set 0, and is in set {space}")
            use = uses.get((space, index), spirv.Use(False, False))
            writable = item["type"].get("access") == "readWrite"
            texels = item["type"]["baseShape"] == TEXELS
            if texels and writable:
                raise ReflectionError(f"{name} is a writable buffer of texels: use a RWStructuredBuffer")
            element = item["type"].get("resultType", {})
            scalar = element.get("elementType", element).get("scalarType", "")
            buffers.append(BufferBinding(name, index, writable, use.reads, use.writes, scalar, texels))
        else:
            shape = item["type"].get("baseShape", kind)
            raise ReflectionError(f"{name} is a {shape}: only buffers and one uniform block are supported")
    entry = data["entryPoints"][0]
    x, y, z = entry["threadGroupSize"]
    return Reflection(
        (x, y, z),
        tuple(sorted(buffers, key=lambda buffer: buffer.binding)),
        uniform,
        spirv.capabilities(code),
        spirv.shared_bytes(code),
    )


def _uniform_block(name: str, kind: Mapping[str, Any]) -> UniformBlock:
    layout = kind["elementVarLayout"]
    found: list[UniformField] = []
    for item in kind["elementType"].get("fields", []):
        scalar = SCALARS.get(item["type"].get("scalarType", "")) if item["type"]["kind"] == "scalar" else None
        if scalar is None:
            raise ReflectionError(f"field {item['name']} of uniform block {name} must be a float, uint or int scalar")
        found.append(UniformField(item["name"], item["binding"]["offset"], scalar))
    return UniformBlock(name, layout["binding"]["size"], tuple(found))
