"""Plan ``reference`` on fp16 maps and matrix units: a kernel for each pass that differs, all of them or none.

Phases and gradients are stored in 16 bits, features and everything of the size of a weight in fp32. Gradients carry the
factor ``scale(model)`` from ``bwd_head_x`` to where a weight's gradient is summed up. Factors that must not be rounded
to fp16 are split in two parts (``PARTS``), which keeps some 20 bits. See docs/reference.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from convtrain.graph.builder import Kernel
from convtrain.graph.types import MatrixShape, Requirements
from cook.model import ModelConfig

FEATURES = 128  # the one NF whose tiles fill registers and shared memory as the matrix kernels expect
SUBGROUP = 32
HALF = Requirements(subgroup_size=SUBGROUP, subgroup_ops=("basic", "shuffle"), storage_16bit=True, float16=True)
MATRIX = Requirements(
    matrix=MatrixShape(16, 16, 16, "f16", "f16", "f32", "f32"),
    subgroup_size=SUBGROUP,
    subgroup_ops=("basic",),
    storage_16bit=True,
    float16=True,
    memory_model=True,
)

ROUNDS = 6  # of KS rows that a depthwise kernel walks down, RADIUS more on either side included
TAP_PARTS = 1  # of h in the gradient of the taps
MIX = {"WARPS": 8, "PIXELS": 64, "DOWN": 8, "DEPTH": 32, "PARTS": 1}
MIX_BACK = {"WARPS": 8, "PIXELS": 64, "DOWN": 8, "PARTS": 1}
SINE_FEATURES = 4
MIX_GRADIENT = {"ROWS": 96, "COLUMNS": 128, "WARPS": 8}  # elements of dM that a workgroup makes

Groups = tuple[int, int, int]
Constants = Mapping[str, Mapping[str, int | float]]


def scale(model: ModelConfig) -> float:
    """The factor that fp16 gradients carry: the power of two next to 3·H·W, by which any float divides exactly."""
    return 2.0 ** round(math.log2(3 * model.height * model.width))


def suits(model: ModelConfig) -> bool:
    """Whether these kernels can do the model: they take four columns at a time, and see four more on either side."""
    return (
        model.nf == FEATURES
        and model.radius <= 4
        and model.domain_width % 4 == 0
        and model.slot("mix.0").offset % 4 == 0
        and model.padded_pixels > model.pixels
    )


class HalfKernels:
    """The kernels for one model."""

    def __init__(self, model: ModelConfig) -> None:
        self._model = model

    def before(self, name: str, others: Kernel | Sequence[Kernel]) -> tuple[Kernel, ...]:
        """The kernel of pass ``name`` for fp16 storage, then ``others``, then for fp32 storage only."""
        others = (others,) if isinstance(others, Kernel) else tuple(others)
        half = self._kernel(name, others[-1])
        return (half, *(replace(kernel, storage="f32") for kernel in others)) if half else others

    def _kernel(self, name: str, scalar: Kernel) -> Kernel | None:
        """The kernel of a pass with the constants of its scalar kernel; None where that one serves both storages."""
        model, dims = self._model, {**scalar.values.get("dims", {}), "SCALE": scale(self._model)}
        nf, quads = model.nf, model.padded_pixels // 4
        match name:
            case "stem_train":
                return self._plain("stem", threads=(quads, nf // 8, 1))
            case "dw" | "bwd_dw_x":
                return self._depthwise(name)
            case "pack_mix" | "pack_wmix":
                return self._plain("pack", scalar.values, threads=scalar.threads)
            case "gemm_mix":
                return self._matrix(name, (model.padded_pixels // MIX["PIXELS"], 1, 1), {"shape": MIX})
            case "mix_unpack":
                return self._plain(name, threads=(quads, nf // 4, 1))
            case "bwd_head_x":
                return self._plain(name, {"dims": dims}, threads=(quads, nf // 8, 1))
            case "bwd_head_w":
                return self._plain(name, groups=(nf, 1, 1))
            case "bwd_sin_dm":
                threads = (quads // 2, nf // SINE_FEATURES, 1)
                return self._plain(name, {"dims": {"FEATURES": SINE_FEATURES}}, threads=threads)
            case "gemm_mixx":
                groups = (2, model.padded_pixels // MIX_BACK["PIXELS"], 1)
                return self._matrix(name, groups, {"shape": MIX_BACK})
            case "unpack_dm":
                return self._plain(name, {"dims": dims}, groups=(model.slices, nf // 8, 1))
            case "gemm_mixw":
                rows, columns = math.ceil(2 * nf / MIX_GRADIENT["ROWS"]), nf // MIX_GRADIENT["COLUMNS"]
                return self._matrix(name, (columns, rows, model.slices), {"block": MIX_GRADIENT})
            case "reduce_mixw":
                return self._plain(name, {"dims": dims}, threads=(model.mix_size, 1, 1))
            case "bwd_dw_k":
                assert scalar.groups is not None
                return self._matrix(name, scalar.groups, {"dims": {**dims, "PARTS": TAP_PARTS}})
            case "bwd_kern":
                return self._plain(name, scalar.values, groups=scalar.groups)
            case "bwd_stem":
                return self._plain(name, {"dims": dims}, groups=(nf, 1, 1))
            case "muon_prep":
                return self._plain(name, groups=(model.layers, 1, 1))
            case "muon_gram" | "muon_poly":
                return self._matrix(name, (nf // 16, nf // 16, model.layers))
            case "muon_upd":
                return self._matrix(name, (2 * nf // 16, nf // 16, model.layers))
        return None

    def _walk(self, rounds: int) -> int:
        return max(1, rounds * self._model.ks - 2 * self._model.radius)

    def _depthwise(self, name: str) -> Kernel:
        model, walk = self._model, self._walk(ROUNDS)
        items = model.domain_width // 4 * math.ceil(model.domain_height / walk)
        return self._plain(name, {"strip": {"WALK": walk}}, threads=(items, model.nf, 1))

    def _plain(
        self,
        name: str,
        values: Constants | None = None,
        *,
        threads: Groups | None = None,
        groups: Groups | None = None,
    ) -> Kernel:
        return Kernel(f"half/{name}.slang", values or {}, threads, groups, "half", requires=HALF, storage="f16")

    def _matrix(self, name: str, groups: Groups, values: Constants | None = None) -> Kernel:
        source = f"half/{name}_matrix.slang"
        return Kernel(source, values or {}, groups=groups, name="matrix", requires=MATRIX, storage="f16")
