"""The ways in which PyTorch trains the model, by name: ``graph-bf16``, ``eager-tf32``, ``graph-fp16-toeplitz``."""

from __future__ import annotations

from dataclasses import dataclass

EXECUTIONS = {
    "eager": "operators launched one by one",
    "compile": "torch.compile",
    "graph": "torch.compile, the whole step replayed as one CUDA graph",
}
PRECISIONS = {
    "bf16": "bfloat16 activations and products",
    "fp16": "float16 activations and products, gradient of the summed loss, divided out in fp32",
    "tf32": "float32 storage, TF32 products",
    "fp32": "float32",
}
DEPTHWISE = {
    "conv": "PyTorch's own depthwise convolution, channels last",
    "toeplitz": "depthwise rewritten by us as batched block-Toeplitz matrix products",
}

GPU_MODES = (
    "eager-tf32",
    "eager-bf16",
    "compile-bf16",
    "graph-tf32",
    "graph-fp16",
    "graph-bf16",
    "graph-fp16-toeplitz",
    "graph-bf16-toeplitz",
)
"""Measured unless told otherwise; -autotune is not among them as it takes minutes a mode."""
CPU_MODES = ("eager-fp32", "compile-fp32", "compile-fp32-toeplitz")


@dataclass(frozen=True)
class Mode:
    """One way to train: how operators are executed, in which precision, with which depthwise convolution.

    ``autotune`` lets the compiler time its own matrix kernels, with fused epilogues, against the library's.
    """

    execution: str
    precision: str
    depthwise: str = "conv"
    autotune: bool = False

    @classmethod
    def parse(cls, name: str) -> Mode:
        """The mode with this name. Raises ValueError that says what a name may be."""
        parts = name.split("-")
        execution, autotune = parts.pop(0), "autotune" in parts
        parts = [part for part in parts if part != "autotune"]
        precision = parts.pop(0) if parts else ""
        depthwise = parts.pop(0) if parts else "conv"
        if execution not in EXECUTIONS or precision not in PRECISIONS or depthwise not in DEPTHWISE or parts:
            raise ValueError(
                f"there is no mode '{name}': a name is one of {', '.join(EXECUTIONS)}, optionally -autotune, "
                f"then one of -{', -'.join(PRECISIONS)}, optionally -toeplitz"
            )
        return cls(execution, precision, depthwise, autotune)

    @property
    def compiled(self) -> bool:
        return self.execution != "eager"

    @property
    def name(self) -> str:
        parts = (self.execution, "autotune" * self.autotune, self.precision, self.depthwise.replace("conv", ""))
        return "-".join(part for part in parts if part)
