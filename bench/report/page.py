"""The results as one Markdown page: what was measured on what, the tables, and what their columns mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.modes import DEPTHWISE, EXECUTIONS, PRECISIONS
from bench.report.tables import comparison, contenders, failures, growth
from bench.results import Results
from bench.rows import PYTORCH, Row

WORDS = {**EXECUTIONS, **PRECISIONS, **DEPTHWISE, "autotune": "the compiler times matrix kernels of its own as well"}

COLUMNS = """\
Times to a PSNR are those of the epochs alone, by each epoch's own output; the final PSNR is that of the averaged
weights. *memory* is each program's own account: of its buffers for convtrain, the allocator's peak for PyTorch, the
process's peak on a CPU. *driver's* is the increase that the driver reports, contexts included. *bandwidth* is what
convtrain's passes declare to move (plan reference in fp32, though its fp16 edition moves less) and *matrix* the model's
mixing products, each as a share of its ceiling. *start* is everything but the epochs: import, compile, tuning, capture,
evaluation, export; convtrain's pipeline cache is warm, and so is PyTorch's compile cache where there are cores enough
to fill it beforehand. A row of fewer *epochs* than the others was only timed."""


def page(results: Results) -> str:
    """Everything that was measured."""
    problem = results.problem
    parts = [
        "# convtrain and PyTorch on one machine",
        f"Image {problem.width}×{problem.height}, NF {problem.nf}, {problem.layers} layers, {results.epochs} epochs, "
        "from the same weights, with the same loss, optimisers and schedule.",
        "\n".join(_facts(results)),
    ]
    if results.rows:
        rows = results.rows
        parts += [comparison(rows, results.epochs), failures(rows), COLUMNS, _modes(rows)]
    if results.sweep:
        parts += ["## How cost grows", growth(results.sweep, contenders(results.sweep)), failures(results.sweep)]
    parts += [f"Note: {note}." for note in results.machine.notes]
    return "\n\n".join(filter(None, parts)) + "\n"


def _facts(results: Results) -> Iterator[str]:
    machine, ceilings, bound = results.machine, results.machine.ceilings, results.bound
    yield f"- CPU: {machine.cpu}"
    if machine.vulkan:
        yield f"- Vulkan device: {machine.vulkan['name']}, driver {machine.vulkan['driver_info']}"
    if machine.torch:
        torch = machine.torch
        more = f"cuDNN {torch['cudnn']}" if machine.gpu else f"{torch['threads']} threads"
        yield f"- PyTorch {torch['version']} on {machine.torch_device}, {more}"
    if ceilings:
        rate = ceilings.get("matrix_flops_per_second")
        yield (
            f"- ceilings: copy {ceilings['copy_bytes_per_second'] / 1e9:,.0f} GB/s (bytes read plus written)"
            + (f", matrix products {rate / 1e12:,.2f} TFLOP/s" if rate else "")
            + f" ({ceilings['how']})"
        )
    if bound:
        yield (
            f"- bound: {bound['ms']:.2f} ms per epoch, for {bound['matrix_flops'] / 1e9:,.1f} GFLOP of matrix products "
            f"and then {bound['bytes'] / 1e9:,.2f} GB of traffic at these ceilings"
        )


def _modes(rows: Sequence[Row]) -> str:
    parts = dict.fromkeys(part for row in rows if row.side == PYTORCH for part in row.name.split("-"))
    if not parts:
        return ""
    known = "; ".join(f"*{part}*: {WORDS[part]}" for part in parts)
    return f"PyTorch's modes: {known}. Without *toeplitz*: {DEPTHWISE['conv']}."
