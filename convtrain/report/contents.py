"""The readable form of what ``convtrain info`` finds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

KINDS = {"training": "training archive", "checkpoint": "checkpoint", "model": "model package"}


def show(found: Mapping[str, Any], console: Console | None = None) -> None:
    """Print tables of the facts that ``convtrain.cli.info.describe`` gives."""
    # Text of the file is never markup, and a pipe gets lines of any length.
    console = console or Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 200
    with console.capture() as captured:
        _print(found, console)
    for line in captured.get().splitlines():
        print(line.rstrip(), file=console.file)  # tables come padded to their width


def _print(found: Mapping[str, Any], console: Console) -> None:
    config = found["config"]
    console.print(f"{found['file']}: {KINDS[found['kind']]}, {_size(found['bytes'])}, format {found['format']}")
    console.print(f"SHA-256   {found['identity']}")
    if "archive" in found:
        console.print(f"archive   {found['archive']}")
    console.print(f"written   by convtrain {found['convtrain']}" + _with(", compiler ", found.get("compiler")))
    console.print(f"config    {_pairs(config)}", soft_wrap=True)
    if "metrics" in found:
        console.print(f"metrics   {_pairs(found['metrics'])}")
    for name, passes in found["plans"].items():
        console.print(_passes(name, passes))
        console.print(_buffers(name, found["buffers"][name]))
    for name, reason in found.get("left_out", {}).items():
        console.print(f"\nno plan {name}: {reason}", soft_wrap=True)
    console.print(_weights(found["weights"]))
    console.print(_blobs(found))


def _passes(plan: str, passes: Iterable[Mapping[str, Any]]) -> Table:
    rows = list(passes)
    groups = {item["group"]: sum(other["group"] == item["group"] for other in rows) for item in rows}
    title = f"plan {plan}: {len(rows)} passes ({', '.join(f'{count} {group}' for group, count in groups.items())})"
    table = _table(title, "#", "pass", "group", "infer", "workgroups", "variants", "ports")
    for item in rows:
        table.add_row(
            str(item["index"]),
            item["name"],
            item["group"],
            "yes" if item["infer"] else "",
            "×".join(map(str, item["variants"][-1]["groups"])),
            ", ".join(variant["name"] for variant in item["variants"]),
            " ".join(f"{port['number']}:{port['name']}={port['access']}:{port['buffer']}" for port in item["ports"]),
        )
    return table


def _buffers(plan: str, buffers: Iterable[Mapping[str, Any]]) -> Table:
    rows = list(buffers)
    table = _table(
        f"plan {plan}: {len(rows)} buffers, {_size(sum(item['bytes'] for item in rows))}",
        *("buffer", "label", "type", "elements", "shape", "size", "marks"),
    )
    for item in rows:
        marks = [("seeded", item["seed"]), ("state", item["dump"]), ("host", item["host"])]
        table.add_row(
            item["id"],
            item["label"] if item["label"] != item["id"] else "",
            item["dtype"],
            f"{item['elements']:,}",
            "×".join(map(str, item["shape"])),
            _size(item["bytes"]),
            ", ".join(name for name, marked in marks if marked),
        )
    return table


def _weights(weights: Mapping[str, Any]) -> Table:
    table = _table(f"{weights['count']:,} weights (float32)", "slot", "offset", "shape")
    for slot in weights["slots"]:
        table.add_row(slot["name"], f"{slot['offset']:,}", "×".join(map(str, slot["shape"])))
    return table


def _blobs(found: Mapping[str, Any]) -> Table:
    names: dict[str, list[str]] = {}
    for seed, blob in {**found.get("seeds", {}), **found.get("entries", {})}.items():
        names.setdefault(blob, []).append(seed)
    for passes in found["plans"].values():
        for item in passes:
            for variant in item["variants"]:
                names.setdefault(variant["spirv"], []).append(f"{item['index']}-{item['name']}-{variant['name']}")
    blobs = found["blobs"]
    table = _table(
        f"{len(blobs)} blobs, {_size(sum(blob['bytes'] for blob in blobs))}", "SHA-256", "size", "stored", "content"
    )
    for blob in blobs:
        stored = f"{_size(blob['stored'])} zstd" if blob["packed"] else "raw"
        used = names.get(blob["sha256"], ["weights" if found["kind"] == "model" else ""])
        more = f" and {len(used) - 3} more" if len(used) > 3 else ""
        table.add_row(blob["sha256"], _size(blob["bytes"]), stored, ", ".join(used[:3]) + more)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=f"\n{title}", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in ("#", "offset", "elements", "size") else "left")
    return table


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({_pairs(value)})"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else str(value)


def _with(label: str, value: Any) -> str:
    return f"{label}{value}" if value else ""


def _size(count: int) -> str:
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
