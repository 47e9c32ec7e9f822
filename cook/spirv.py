"""A reader of SPIR-V modules: what cook must know of the compiled code itself.

Opcodes and layout: Khronos SPIR-V specification, sections 2.3 (physical layout) and 3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = 0x07230203
HEADER_WORDS = 5

OP_SOURCE = 3
OP_CAPABILITY = 17
OP_TYPE_BOOL = 20
OP_TYPE_INT = 21
OP_TYPE_FLOAT = 22
OP_TYPE_VECTOR = 23
OP_TYPE_MATRIX = 24
OP_TYPE_ARRAY = 28
OP_TYPE_STRUCT = 30
OP_TYPE_POINTER = 32
OP_CONSTANT = 43
OP_FUNCTION_CALL = 57
OP_VARIABLE = 59
OP_LOAD = 61
OP_STORE = 62
OP_ACCESS_CHAIN = 65
OP_IN_BOUNDS_ACCESS_CHAIN = 66
OP_DECORATE = 71
OP_COPY_OBJECT = 83
OP_ATOMIC_LOAD = 227
OP_ATOMIC_STORE = 228
ATOMICS = range(229, 243)  # OpAtomicExchange … OpAtomicXor: read and write
OP_COOPERATIVE_LOAD = 4457
OP_COOPERATIVE_STORE = 4458

DECORATION_BINDING = 33
DECORATION_SET = 34
CLASS_WORKGROUP = 4

CAPABILITIES = {
    0: "Matrix",
    1: "Shader",
    9: "Float16",
    10: "Float64",
    11: "Int64",
    22: "Int16",
    39: "Int8",
    46: "SampledBuffer",
    61: "GroupNonUniform",
    62: "GroupNonUniformVote",
    63: "GroupNonUniformArithmetic",
    64: "GroupNonUniformBallot",
    65: "GroupNonUniformShuffle",
    66: "GroupNonUniformShuffleRelative",
    67: "GroupNonUniformClustered",
    68: "GroupNonUniformQuad",
    4433: "StorageBuffer16BitAccess",
    4434: "UniformAndStorageBuffer16BitAccess",
    4435: "StoragePushConstant16",
    5345: "VulkanMemoryModel",
    5346: "VulkanMemoryModelDeviceScope",
    6022: "CooperativeMatrixKHR",
}
"""Names of the capabilities that convtrain's kernels can come to need; others are shown by number."""


@dataclass(frozen=True)
class Use:
    """How the code touches one bound variable; a pointer handed to a function counts as both."""

    reads: bool
    writes: bool


def instructions(code: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Every instruction as (opcode, operand words). Raises ValueError for data that is not SPIR-V."""
    if len(code) % 4 or len(code) < 4 * HEADER_WORDS or struct.unpack_from("<I", code)[0] != MAGIC:
        raise ValueError("not a little-endian SPIR-V module")
    words = struct.unpack(f"<{len(code) // 4}I", code)
    at = HEADER_WORDS
    while at < len(words):
        count = words[at] >> 16
        if count == 0 or at + count > len(words):
            raise ValueError(f"SPIR-V instruction at word {at} overruns the module")
        yield words[at] & 0xFFFF, words[at + 1 : at + count]
        at += count


def strip_source(code: bytes) -> bytes:
    """The module without OpSource: debug information, whose language number 11 (Slang) older validators reject."""
    kept = [code[: 4 * HEADER_WORDS]]
    for opcode, operands in instructions(code):
        if opcode != OP_SOURCE:
            kept.append(struct.pack(f"<{len(operands) + 1}I", (len(operands) + 1) << 16 | opcode, *operands))
    return b"".join(kept)


def capabilities(code: bytes) -> tuple[str, ...]:
    """The capabilities that the module declares, sorted by name."""
    found = {operands[0] for opcode, operands in instructions(code) if opcode == OP_CAPABILITY}
    return tuple(sorted(CAPABILITIES.get(number, f"capability {number}") for number in found))


def shared_bytes(code: bytes) -> int:
    """Workgroup (shared) memory that the module declares, in bytes, without padding between variables."""
    sizes: dict[int, int] = {}
    constants: dict[int, int] = {}
    pointees: dict[int, int] = {}
    total = 0
    for opcode, operands in instructions(code):
        if opcode == OP_CONSTANT:
            constants[operands[1]] = operands[2]
        elif opcode == OP_TYPE_BOOL:
            sizes[operands[0]] = 4
        elif opcode in (OP_TYPE_INT, OP_TYPE_FLOAT):
            sizes[operands[0]] = operands[1] // 8
        elif opcode in (OP_TYPE_VECTOR, OP_TYPE_MATRIX):
            sizes[operands[0]] = sizes.get(operands[1], 0) * operands[2]
        elif opcode == OP_TYPE_ARRAY:
            sizes[operands[0]] = sizes.get(operands[1], 0) * constants.get(operands[2], 0)
        elif opcode == OP_TYPE_STRUCT:
            sizes[operands[0]] = sum(sizes.get(member, 0) for member in operands[1:])
        elif opcode == OP_TYPE_POINTER and operands[1] == CLASS_WORKGROUP:
            pointees[operands[0]] = operands[2]
        elif opcode == OP_VARIABLE and operands[2] == CLASS_WORKGROUP:
            total += sizes.get(pointees[operands[0]], 0)
    return total


def uses(code: bytes) -> dict[tuple[int, int], Use]:
    """How the code touches each bound variable, by (descriptor set, binding). Unused variables are absent."""
    bindings: dict[int, int] = {}
    sets: dict[int, int] = {}
    root: dict[int, int] = {}
    read: set[int] = set()
    written: set[int] = set()
    for opcode, operands in instructions(code):
        if opcode == OP_DECORATE and operands[1] == DECORATION_BINDING:
            bindings[operands[0]] = operands[2]
        elif opcode == OP_DECORATE and operands[1] == DECORATION_SET:
            sets[operands[0]] = operands[2]
        elif opcode == OP_VARIABLE and operands[1] in bindings:
            root[operands[1]] = operands[1]
        elif opcode in (OP_ACCESS_CHAIN, OP_IN_BOUNDS_ACCESS_CHAIN, OP_COPY_OBJECT):
            if operands[2] in root:
                root[operands[1]] = root[operands[2]]
        elif opcode in (OP_LOAD, OP_COOPERATIVE_LOAD, OP_ATOMIC_LOAD):
            read.add(root.get(operands[2], 0))
        elif opcode in (OP_STORE, OP_COOPERATIVE_STORE, OP_ATOMIC_STORE):
            written.add(root.get(operands[0], 0))
        elif opcode in ATOMICS:
            read.add(root.get(operands[2], 0))
            written.add(root.get(operands[2], 0))
        elif opcode == OP_FUNCTION_CALL:
            handed = {root[operand] for operand in operands[3:] if operand in root}
            read |= handed
            written |= handed
    touched = (read | written) - {0}
    return {(sets.get(item, 0), bindings[item]): Use(item in read, item in written) for item in touched}
