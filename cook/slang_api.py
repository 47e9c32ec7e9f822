"""The Slang compiler's C API, as the slangpy wheel carries it, through ctypes.

slangpy itself is never imported: it opens a GPU device layer, and cooking works where there is none.
Declarations: ``slang.h`` and ``slang-deprecated.h`` in the wheel.
"""

from __future__ import annotations

import ctypes
import importlib.util
from functools import lru_cache
from pathlib import Path

from convtrain.errors import InputError

TARGET_SPIRV = 6  # SLANG_SPIRV
LANGUAGE_SLANG = 1  # SLANG_SOURCE_LANGUAGE_SLANG
STAGE_COMPUTE = 6  # SLANG_STAGE_COMPUTE
ROW_MAJOR = 1  # SLANG_MATRIX_LAYOUT_ROW_MAJOR
FLOAT_DEFAULT = 0  # SLANG_FLOATING_POINT_MODE_DEFAULT
OPTIMIZE_DEFAULT = 1  # SLANG_OPTIMIZATION_LEVEL_DEFAULT
SEVERITY_DISABLED = 0  # SLANG_SEVERITY_DISABLED
EXPECTED = (
    41012,  # "profile implicitly upgraded": capabilities are read off the code, the profile only gives the version
    30514,  # "loop runs zero times": with injected constants it may, as the taps' loop for a 1x1 kernel
)
"""Warnings that say nothing is wrong."""

_POINTER = ctypes.c_void_p
_TEXT = ctypes.c_char_p
_INT = ctypes.c_int

_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "spGetBuildTagString": (_TEXT, []),
    "spCreateSession": (_POINTER, [_TEXT]),
    "spFindProfile": (_INT, [_POINTER, _TEXT]),
    "spCreateCompileRequest": (_POINTER, [_POINTER]),
    "spDestroyCompileRequest": (None, [_POINTER]),
    "spAddCodeGenTarget": (_INT, [_POINTER, _INT]),
    "spSetTargetProfile": (None, [_POINTER, _INT, _INT]),
    "spSetTargetFloatingPointMode": (None, [_POINTER, _INT, _INT]),
    "spSetMatrixLayoutMode": (None, [_POINTER, _INT]),
    "spSetOptimizationLevel": (None, [_POINTER, _INT]),
    "spOverrideDiagnosticSeverity": (None, [_POINTER, ctypes.c_ssize_t, _INT]),
    "spAddTranslationUnit": (_INT, [_POINTER, _INT, _TEXT]),
    "spAddTranslationUnitSourceString": (None, [_POINTER, _INT, _TEXT, _TEXT]),
    "spAddEntryPoint": (_INT, [_POINTER, _INT, _TEXT, _INT]),
    "spCompile": (_INT, [_POINTER]),
    "spGetDiagnosticOutput": (_TEXT, [_POINTER]),
    "spGetEntryPointCode": (_POINTER, [_POINTER, _INT, ctypes.POINTER(ctypes.c_size_t)]),
    "spGetReflection": (_POINTER, [_POINTER]),
    "spReflection_ToJson": (_INT, [_POINTER, _POINTER, ctypes.POINTER(_POINTER)]),
}


def library_path() -> Path:
    """The compiler's shared library in the slangpy wheel. Raises InputError when it is not installed."""
    spec = importlib.util.find_spec("slangpy")
    if spec is None or spec.origin is None:
        raise InputError("Cooking needs the Slang compiler in the slangpy package: run 'pip install slangpy'.")
    folder = Path(spec.origin).parent
    for pattern in ("libslang-compiler.so*", "libslang-compiler*.dylib", "slang-compiler.dll"):
        found = sorted(folder.glob(pattern))
        if found:
            return found[0]
    raise InputError(f"The slangpy package in {folder} carries no libslang-compiler: install slangpy 0.43.1.")


@lru_cache(maxsize=1)
def load() -> ctypes.CDLL:
    """The loaded library with typed functions. Its calls release the GIL."""
    loaded = ctypes.CDLL(str(library_path()))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype = result
        function.argtypes = arguments
    return loaded


def build_tag() -> str:
    """The compiler's version, for example ``2026.12``."""
    tag: bytes = load().spGetBuildTagString()
    return tag.decode()


def take_blob(blob: ctypes.c_void_p) -> bytes:
    """The contents of an ``ISlangBlob``, which is released.

    A COM object: its virtual table holds queryInterface, addRef, release, getBufferPointer, getBufferSize.
    """
    table = ctypes.cast(blob, ctypes.POINTER(ctypes.POINTER(_POINTER))).contents
    release = ctypes.CFUNCTYPE(ctypes.c_uint32, _POINTER)(table[2])
    pointer = ctypes.CFUNCTYPE(_POINTER, _POINTER)(table[3])
    length = ctypes.CFUNCTYPE(ctypes.c_size_t, _POINTER)(table[4])
    data = ctypes.string_at(pointer(blob), length(blob))
    release(blob)
    return data
