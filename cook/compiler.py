"""Slang source text to SPIR-V and its interface: deterministic, and with no GPU present."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from convtrain.errors import InputError
from cook import slang_api, spirv
from cook.reflect import Reflection, ReflectionError, reflect

PROFILE = "spirv_1_3"
"""SPIR-V 1.3: what Vulkan 1.1 takes, subgroup operations and 16-bit storage included."""

MATRIX_PROFILE = "spirv_1_6"
"""SPV_KHR_cooperative_matrix builds on SPIR-V 1.6, which every device that offers it takes."""

SPIRV_ENTRY = "main"
"""The entry point's name in the SPIR-V, whatever it is called in the source."""


class ShaderError(InputError):
    """A shader that does not compile, or whose interface is unusable. Carries the compiler's diagnostics."""


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel: SPIR-V without OpSource, its interface, and the compiler's warnings."""

    spirv: bytes
    reflection: Reflection
    warnings: str = ""


class _Sessions(threading.local):
    """One compiler session a thread: opening one takes 0.2 s, and a session serves one thread at a time."""

    handle: ctypes.c_void_p | None = None

    def get(self) -> ctypes.c_void_p:
        if self.handle is None:
            self.handle = slang_api.load().spCreateSession(None)
            if not self.handle:
                raise InputError("The Slang compiler in the slangpy package does not start.")
        return self.handle


_sessions = _Sessions()


@contextmanager
def _request(session: ctypes.c_void_p) -> Iterator[ctypes.c_void_p]:
    library = slang_api.load()
    request = library.spCreateCompileRequest(session)
    try:
        yield request
    finally:
        library.spDestroyCompileRequest(request)


def options_key(entry: str, profile: str) -> str:
    """Everything but the source text that decides the result of a compile: part of a cache key."""
    return f"slang {slang_api.build_tag()} | {entry} | {profile} | row-major | float default | O1 | no OpSource"


def compile_shader(text: str, entry: str = "main", *, name: str, profile: str = PROFILE) -> Compiled:
    """Compile one compute entry point.

    ``name`` is the file name in diagnostics. Floating point: the compiler neither reorders nor assumes finite
    values; the driver may contract a multiplication and an addition into one fused operation.
    Raises ShaderError with the compiler's diagnostics.
    """
    library = slang_api.load()
    session = _sessions.get()
    with _request(session) as request:
        target = library.spAddCodeGenTarget(request, slang_api.TARGET_SPIRV)
        library.spSetTargetProfile(request, target, library.spFindProfile(session, profile.encode()))
        library.spSetTargetFloatingPointMode(request, target, slang_api.FLOAT_DEFAULT)
        library.spSetMatrixLayoutMode(request, slang_api.ROW_MAJOR)
        library.spSetOptimizationLevel(request, slang_api.OPTIMIZE_DEFAULT)
        for diagnostic in slang_api.EXPECTED:
            library.spOverrideDiagnosticSeverity(request, diagnostic, slang_api.SEVERITY_DISABLED)
        unit = library.spAddTranslationUnit(request, slang_api.LANGUAGE_SLANG, b"kernel")
        library.spAddTranslationUnitSourceString(request, unit, name.encode(), text.encode())
        library.spAddEntryPoint(request, unit, entry.encode(), slang_api.STAGE_COMPUTE)
        failed = library.spCompile(request) < 0
        diagnostics = (library.spGetDiagnosticOutput(request) or b"").decode(errors="replace").strip()
        if failed:
            raise ShaderError(f"{name} does not compile:\n{diagnostics}")
        size = ctypes.c_size_t()
        pointer = library.spGetEntryPointCode(request, 0, ctypes.byref(size))
        if not pointer or size.value == 0:
            raise ShaderError(f"{name} compiles to nothing.\n{diagnostics}")
        code = spirv.strip_source(ctypes.string_at(pointer, size.value))
        blob = ctypes.c_void_p()
        if library.spReflection_ToJson(library.spGetReflection(request), None, ctypes.byref(blob)) < 0:
            raise ShaderError(f"{name}: the compiler gives no reflection.\n{diagnostics}")
        layout = slang_api.take_blob(blob)
    try:
        return Compiled(code, reflect(layout, code), diagnostics)
    except ReflectionError as error:
        raise ShaderError(f"{name}: {error}.") from error
