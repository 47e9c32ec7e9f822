"""Constant injection: includes, fields, and every way in which they can be wrong."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from cook.compiler import compile_shader
from cook.inject import InjectionError, flatten, inject

MAIN = """#include "common/math.slang"
#include "common/math.slang"
[[vk::binding(0, 0)]] RWStructuredBuffer<float> o;
// dims
namespace dims { static const int COUNT = 0; static const float SCALE = 0.0; }
// cfg
namespace cfg
{
    static const uint STEP = 0; // pixels
    /* static const int OLD = 0; } */
}
[shader("compute")]
[numthreads(4, 1, 1)]
void main(uint3 id : SV_DispatchThreadID)
{
    if (id.x < dims::COUNT) o[id.x * cfg::STEP] = twice(dims::SCALE) * model::NF;
}
"""

MATH = """// The model's constants that this file needs.
// model
namespace model { static const int NF = 0; }
float twice(float x) { return 2 * x; }
"""

PACKS = {"model": {"NF": 32, "KS": 7}}
VALUES: dict[str, dict[str, int | float]] = {"dims": {"COUNT": 3, "SCALE": 0.1}, "cfg": {"STEP": 2}}


def folder(path: Path, main: str = MAIN, **others: str) -> Path:
    (path / "common").mkdir()
    (path / "common/math.slang").write_text(MATH)
    (path / "main.slang").write_text(main)
    for name, text in others.items():
        (path / f"{name}.slang").write_text(text)
    return path


def run(root: Path, packs: object = None, values: object = None) -> str:
    source = flatten("main.slang", [root])
    return inject(source, packs or PACKS, VALUES if values is None else values)  # type: ignore[arg-type]


def test_fields_are_filled_and_the_rest_is_kept(tmp_path: Path) -> None:
    text = run(folder(tmp_path))
    assert "static const int COUNT = 3; static const float SCALE = 0.1; }" in text
    assert "static const uint STEP = 2u; // pixels" in text
    assert "static const int NF = 32;" in text
    assert "/* static const int OLD = 0; } */" in text
    assert text.count("float twice") == 1
    compile_shader(text, name="main.slang")


def test_same_text_in_another_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert run(folder(tmp_path / "a")) == run(folder(tmp_path / "b"))


def test_compiler_diagnostics_name_the_original_line(tmp_path: Path) -> None:
    text = run(folder(tmp_path, MAIN.replace("twice(", "thrice(")))
    with pytest.raises(Exception, match=r"main\.slang:16"):
        compile_shader(text, name="main.slang")


@pytest.mark.parametrize("value", [0.1, 1e-8, -2.5, 1 / 3, 3e38, 1e-38, 25, 2.0], ids=repr)
def test_floats_arrive_exactly(tmp_path: Path, value: float) -> None:
    text = run(folder(tmp_path), values={**VALUES, "dims": {"COUNT": 3, "SCALE": value}})
    code = compile_shader(text.replace("twice(dims::SCALE) * model::NF", "dims::SCALE"), name="main.slang").spirv
    assert struct.pack("<f", value) in code


def error(root: Path, packs: object = None, values: object = None) -> str:
    with pytest.raises(InjectionError) as caught:
        run(root, packs, values)
    return str(caught.value)


def test_unknown_field_of_a_pack(tmp_path: Path) -> None:
    message = error(folder(tmp_path), packs={"model": {"KS": 7}})
    assert message.startswith("common/math.slang:3:")
    assert "model::NF" in message
    assert "unknown" in message


def test_field_without_a_value(tmp_path: Path) -> None:
    message = error(folder(tmp_path), values={**VALUES, "dims": {"COUNT": 3}})
    assert message.startswith("main.slang:5:")
    assert "dims::SCALE" in message


def test_value_without_a_field(tmp_path: Path) -> None:
    message = error(folder(tmp_path), values={**VALUES, "cfg": {"STEP": 2, "STRIDE": 1}})
    assert message.startswith("main.slang:9:")
    assert "cfg::STRIDE" in message
    assert "missing" in message


def test_values_without_an_annotation(tmp_path: Path) -> None:
    message = error(folder(tmp_path), values={**VALUES, "extra": {"A": 1}})
    assert message.startswith("main.slang:1:")
    assert "extra::A" in message


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"COUNT": 3.0, "SCALE": 0.1}, "COUNT"),
        ({"COUNT": True, "SCALE": 0.1}, "COUNT"),
        ({"COUNT": "3", "SCALE": 0.1}, "COUNT"),
        ({"COUNT": 2**31, "SCALE": 0.1}, "COUNT"),
        ({"COUNT": 3, "SCALE": "x"}, "SCALE"),
        ({"COUNT": 3, "SCALE": float("nan")}, "SCALE"),
        ({"COUNT": 3, "SCALE": 1e39}, "SCALE"),
    ],
)
def test_wrong_type(tmp_path: Path, values: dict[str, object], field: str) -> None:
    message = error(folder(tmp_path), values={**VALUES, "dims": values})
    assert message.startswith(f"main.slang:5: 'dims::{field}' is of type")


def test_negative_value_for_an_unsigned_field(tmp_path: Path) -> None:
    assert error(folder(tmp_path), values={**VALUES, "cfg": {"STEP": -1}}).startswith("main.slang:9:")


def test_field_of_a_type_that_cannot_be_injected(tmp_path: Path) -> None:
    message = error(folder(tmp_path, MAIN.replace("int COUNT", "double COUNT")))
    assert message.startswith("main.slang:5:")
    assert "double" in message


def test_injected_twice(tmp_path: Path) -> None:
    again = "// model\nnamespace model { static const int NF = 0; }\n"
    message = error(folder(tmp_path, MAIN.replace("// dims", again + "// dims")))
    assert message.startswith("main.slang:5: 'model::NF' is injected twice, first in common/math.slang:3")


def test_two_parts_of_one_pack_are_fine(tmp_path: Path) -> None:
    more = "// model\nnamespace model { static const int KS = 0; }\n"
    assert "static const int KS = 7;" in run(folder(tmp_path, MAIN.replace("// dims", more + "// dims")))


def test_given_as_pack_and_as_values(tmp_path: Path) -> None:
    assert "'dims' is given both" in error(folder(tmp_path), packs={**PACKS, "dims": {"COUNT": 1}})


def test_annotation_left_un_injected(tmp_path: Path) -> None:
    message = error(folder(tmp_path), values={"dims": VALUES["dims"]})
    assert message.startswith("main.slang:6: nothing is injected into annotation 'cfg'")


def test_annotation_that_does_not_match_its_namespace(tmp_path: Path) -> None:
    message = error(folder(tmp_path, MAIN.replace("// cfg", "// cgf")))
    assert message.startswith("main.slang:6: annotation 'cgf' stands above namespace 'cfg'")


def test_namespace_without_its_annotation(tmp_path: Path) -> None:
    message = error(folder(tmp_path, MAIN.replace("// dims\n", "// dims\n\n")))
    assert message.startswith("main.slang:6: '// dims' is missing above namespace 'dims'")


def test_field_that_does_not_start_as_zero(tmp_path: Path) -> None:
    message = error(folder(tmp_path, MAIN.replace("COUNT = 0", "COUNT = 64")))
    assert message.startswith("main.slang:5:")
    assert "must start as 0" in message


def test_anything_else_in_the_namespace(tmp_path: Path) -> None:
    message = error(folder(tmp_path, MAIN.replace("{ static const int COUNT = 0;", "{ int COUNT;")))
    assert message.startswith("main.slang:5: namespace 'dims' may hold only fields")


def test_missing_include_names_the_line(tmp_path: Path) -> None:
    root = folder(tmp_path, '\n#include "gone.slang"\n')
    with pytest.raises(InjectionError, match=r"main\.slang:2: there is no gone\.slang"):
        flatten("main.slang", [root])


def test_missing_source(tmp_path: Path) -> None:
    with pytest.raises(InjectionError, match=r"no shader source nothing\.slang"):
        flatten("nothing.slang", [tmp_path])


def test_includes_in_a_circle_end(tmp_path: Path) -> None:
    root = folder(tmp_path, '#include "a.slang"\n', a='#include "b.slang"\nint a;\n', b='#include "a.slang"\nint b;\n')
    text = flatten("main.slang", [root]).text
    assert text.count("int a;") == text.count("int b;") == 1


def test_default_build_keeps_its_zeros(tmp_path: Path) -> None:
    assert "static const int COUNT = 0;" in flatten("main.slang", [folder(tmp_path)]).text
