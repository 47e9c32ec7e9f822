"""The Slang compiler through its C API: SPIR-V, interface, diagnostics, determinism."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from convtrain.graph.types import UniformField
from cook import spirv
from cook.compiler import MATRIX_PROFILE, ShaderError, compile_shader
from cook.reflect import Reflection

SCALE = """
struct Controls { float rate; uint epoch; int shift; };
[[vk::binding(0, 0)]] StructuredBuffer<float> source;
[[vk::binding(3, 0)]] RWStructuredBuffer<float> target;
[[vk::binding(4, 0)]] RWStructuredBuffer<float> both;
[[vk::binding(5, 0)]] StructuredBuffer<float> idle;
[[vk::binding(0, 1)]] ConstantBuffer<Controls> controls;
groupshared float tile[64];
[shader("compute")]
[numthreads(64, 1, 1)]
void main(uint3 id : SV_DispatchThreadID, uint3 local : SV_GroupThreadID)
{
    tile[local.x] = source[id.x];
    GroupMemoryBarrierWithGroupSync();
    target[id.x] = tile[63 - local.x] * controls.rate + float(controls.epoch);
    both[id.x] += 1.0;
}
"""

HALF = """
[[vk::binding(0, 0)]] StructuredBuffer<half> source;
[[vk::binding(1, 0)]] RWStructuredBuffer<float> target;
[shader("compute")]
[numthreads(32, 1, 1)]
void main(uint3 id : SV_DispatchThreadID) { target[id.x] = WaveActiveSum(float(source[id.x])); }
"""

MATRIX = """
using namespace linalg;
[[vk::binding(0, 0)]] StructuredBuffer<half> a;
[[vk::binding(1, 0)]] RWStructuredBuffer<float> c;
typealias A = CoopMat<half, MemoryScope.Subgroup, 16, 16, CoopMatMatrixUse.MatrixA>;
typealias B = CoopMat<half, MemoryScope.Subgroup, 16, 16, CoopMatMatrixUse.MatrixB>;
typealias Sum = CoopMat<float, MemoryScope.Subgroup, 16, 16, CoopMatMatrixUse.MatrixAccumulator>;
[shader("compute")]
[numthreads(32, 1, 1)]
void main(uint3 group : SV_GroupID)
{
    let x = A.Load<CoopMatMatrixLayout.RowMajor>(a, group.x * 256, 16);
    let y = B.Load<CoopMatMatrixLayout.RowMajor>(a, group.x * 256, 16);
    coopMatMulAdd<float, false>(x, y, Sum(0.0)).Store<CoopMatMatrixLayout.RowMajor>(c, group.x * 256, 16);
}
"""


def kernel(body: str, declarations: str = "") -> str:
    return (
        f"[[vk::binding(0, 0)]] RWStructuredBuffer<float> o;\n{declarations}\n"
        f'[shader("compute")] [numthreads(1, 1, 1)] void main(uint3 id : SV_DispatchThreadID) {{ {body} }}\n'
    )


def test_reflection_of_buffers_uniforms_and_workgroup() -> None:
    seen = compile_shader(SCALE, name="scale.slang").reflection
    assert seen.local == (64, 1, 1)
    assert seen.shared_bytes == 256
    assert seen.capabilities == ("Shader",)
    rows = [(b.binding, b.name, b.writable, b.reads, b.writes) for b in seen.buffers]
    assert rows == [
        (0, "source", False, True, False),
        (3, "target", True, False, True),
        (4, "both", True, True, True),
        (5, "idle", False, False, False),
    ]
    assert seen.uniform is not None
    assert seen.uniform.size == 16  # std140 rounds a block up to 16 bytes
    assert seen.uniform.fields == (
        UniformField("rate", 0, "f32"),
        UniformField("epoch", 4, "u32"),
        UniformField("shift", 8, "i32"),
    )
    assert Reflection.from_json(json.loads(json.dumps(seen.to_json()))) == seen


def test_capabilities_are_read_off_the_code() -> None:
    compiled = compile_shader(HALF, name="half.slang")
    assert {"Float16", "UniformAndStorageBuffer16BitAccess", "GroupNonUniformArithmetic"} <= set(
        compiled.reflection.capabilities
    )
    assert compiled.warnings == ""


def test_cooperative_matrices_compile_and_their_access_is_seen() -> None:
    compiled = compile_shader(MATRIX, name="matrix.slang", profile=MATRIX_PROFILE)
    assert {"CooperativeMatrixKHR", "VulkanMemoryModel"} <= set(compiled.reflection.capabilities)
    assert [(b.reads, b.writes) for b in compiled.reflection.buffers] == [(True, False), (False, True)]


@pytest.mark.parametrize("text", [SCALE, HALF], ids=["scale", "half"])
def test_no_source_instruction_and_valid_spirv(text: str, tmp_path: Path) -> None:
    code = compile_shader(text, name="x.slang").spirv
    assert all(opcode != spirv.OP_SOURCE for opcode, _ in spirv.instructions(code))
    validator = shutil.which("spirv-val")
    if validator is None:
        pytest.skip("spirv-val is not installed")
    path = tmp_path / "x.spv"
    path.write_bytes(code)
    done = subprocess.run([validator, "--target-env", "vulkan1.1", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_same_bytes_again_and_from_several_threads() -> None:
    texts = [SCALE.replace("63 -", f"{n} -") for n in range(60, 68)]
    alone = [compile_shader(text, name="x.slang").spirv for text in texts]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda text: compile_shader(text, name="x.slang").spirv, texts))
    assert alone == together
    assert len(set(alone)) == len(alone)


def test_error_names_file_and_line_of_the_line_directive() -> None:
    text = kernel("o[0] = missing;", '#line 40 "inner.slang"')
    with pytest.raises(ShaderError, match=r"(?s)outer\.slang does not compile.*inner\.slang:40"):
        compile_shader(text, name="outer.slang")


def test_missing_entry_point_is_an_error() -> None:
    with pytest.raises(ShaderError, match="entry point"):
        compile_shader(kernel("o[0] = 1;"), "elsewhere", name="x.slang")


@pytest.mark.parametrize(
    ("declaration", "body", "complaint"),
    [
        ("[[vk::binding(1, 0)]] RWTexture2D<float> picture;", "picture[int2(0, 0)] = o[0];", "picture"),
        ("[[vk::binding(1, 2)]] RWStructuredBuffer<float> far;", "far[0] = o[0];", "far"),
        ("[[vk::binding(1, 0)]] RWBuffer<float4> texels;", "texels[0] = o[0];", "texels is a writable buffer"),
        ("uniform float loose;", "o[0] = loose;", "loose"),
        ("struct C { float2 v; }; [[vk::binding(0, 1)]] ConstantBuffer<C> c;", "o[0] = c.v.x;", "field v"),
        ("struct C { float v; }; [[vk::binding(1, 1)]] ConstantBuffer<C> c;", "o[0] = c.v;", "uniform block c"),
    ],
)
def test_unusable_interfaces_are_refused_by_name(declaration: str, body: str, complaint: str) -> None:
    with pytest.raises(ShaderError, match=complaint):
        compile_shader(kernel(body, declaration), name="x.slang")


def test_foreign_bytes_are_not_spirv() -> None:
    with pytest.raises(ValueError, match="SPIR-V"):
        list(spirv.instructions(b"not a module at all!"))


def test_the_compiler_package_is_never_imported() -> None:
    script = (
        "import sys; from cook.compiler import compile_shader; "
        f"compile_shader({HALF!r}, name='x'); assert 'slangpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parent.parent)
