"""``convtrain devices``: every Vulkan device, what it can do, and which variant of each pass it would run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from convtrain.errors import InputError
from convtrain.files.archive import ARCHIVE_NAME, open_archive
from convtrain.gpu.capabilities import capabilities
from convtrain.gpu.live.instance import list_devices
from convtrain.gpu.plan import Choice, ExecutionPlan, plan_execution, preferred
from convtrain.gpu.snapshot import DeviceSnapshot
from convtrain.gpu.switches import Switches
from convtrain.graph.types import Plan, to_json

DEFAULT_RES = Path("res_train")


def devices(
    json_: Annotated[bool, typer.Option("--json", help="Everything, as JSON on stdout.")] = False,
    res: Annotated[
        Path | None, typer.Option(help="Folder with an archive whose passes to look at (res_train if present).")
    ] = None,
) -> None:
    """List the Vulkan devices: what each can do, and with an archive which variant each pass would get and why."""
    found, plans = list_devices(), _plans(res)
    switches = Switches.from_environment(os.environ)
    described = [describe(device, plans, switches) for device in found]
    if json_:
        typer.echo(json.dumps(described, indent=2))
    else:
        typer.echo("\n\n".join(render(entry) for entry in described))


def _plans(res: Path | None) -> Mapping[str, Plan]:
    """The plans of the archive in ``res``. The default folder need not have a usable one; one asked for must."""
    if res is None and not (DEFAULT_RES / ARCHIVE_NAME).exists():
        return {}
    try:
        with open_archive(res or DEFAULT_RES) as archive:
            return dict(archive.plans)
    except InputError as error:
        if res is not None:
            raise
        typer.echo(f"{error} The devices are listed without it.", err=True)
        return {}


def describe(device: DeviceSnapshot, plans: Mapping[str, Plan], switches: Switches) -> dict[str, Any]:
    """A device's snapshot, its capability classes, and what it makes of each plan, as JSON-able data."""
    usable = switches.apply(device)
    found = {name: _execution(device, plan, switches) for name, plan in plans.items()}
    order = preferred(device, plans, switches.plan or "auto")
    return {
        **to_json(device),
        "capabilities": to_json(capabilities(usable)),
        "plans": found,
        "preference": order,
        "auto": next((name for name in order if found[name]["usable"]), None),
    }


def _execution(device: DeviceSnapshot, plan: Plan, switches: Switches) -> dict[str, Any]:
    try:
        execution = plan_execution(device, plan, switches)
    except InputError as error:
        return {"usable": False, "reason": str(error)}
    return {
        "usable": True,
        "storage": execution.storage,
        "device_bytes": execution.device_memory.total,
        "variants": execution.variant_classes(),
        "passes": [_choice(execution, choice) for choice in execution.choices],
    }


def _choice(execution: ExecutionPlan, choice: Choice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "name": execution.plan.passes[choice.index].name,
        "variant": choice.variant.name,
        "rejected": to_json(choice.rejected),
    }


def render(entry: Mapping[str, Any]) -> str:
    """The readable form of what :func:`describe` gives."""
    heaps = [heap["size"] for heap in entry["heaps"] if heap["device_local"]]
    limits = entry["limits"]
    facts = [
        ("driver", f"{entry['driver_name']} {entry['driver_info']}".strip()),
        ("Vulkan", ".".join(map(str, entry["api_version"]))),
        ("memory", f"{_size(max(heaps, default=0))}, {_size(limits['storage_range'])} in one binding"),
        ("workgroup", f"{limits['workgroup_invocations']} invocations"),
        ("subgroup", f"{entry['subgroup']['size']}: {', '.join(entry['subgroup']['operations'])}"),
    ]
    lines = [f"{entry['index']}: {entry['name']} ({entry['kind']})"]
    lines += [f"   {name:<24} {text}" for name, text in facts]
    for item in entry["capabilities"]:
        lines.append(f"   {item['name']:<24} {'yes' if item['present'] else 'no'}: {item['detail']}")
    for name, plan in entry["plans"].items():
        lines += [f"   {line}" for line in _plan_lines(name, plan)]
    if entry["plans"]:
        order = ", then ".join(entry["preference"])
        lines.append(f"   plan auto: {entry['auto'] or 'none'}. Preferred on this type of device: {order}")
    return "\n".join(lines)


def _plan_lines(name: str, plan: Mapping[str, Any]) -> list[str]:
    if not plan["usable"]:
        return [f"plan {name}: no. {plan['reason']}"]
    counts = ", ".join(f"{count} {variant}" for variant, count in plan["variants"].items())
    lines = [f"plan {name}: yes, {plan['storage']} storage, {_size(plan['device_bytes'])}, passes: {counts}"]
    groups: dict[str, list[str]] = {}  # passes by what is said of them
    for item in plan["passes"]:
        said = "; ".join(f"not {other['name']}: {', '.join(other['reasons'])}" for other in item["rejected"])
        if said:
            groups.setdefault(f"{item['variant']}, {said}", []).append(item["name"])
    for said, names in groups.items():
        often = {other: names.count(other) for other in names}
        passes = ", ".join(other if count == 1 else f"{other} ×{count}" for other, count in often.items())
        lines.append(f"  {passes}: {said}")
    return lines


def _size(count: int) -> str:
    for unit, scale in (("GiB", 30), ("MiB", 20)):
        if count >= 1 << scale:
            return f"{count / (1 << scale):.1f} {unit}"
    return f"{count} bytes"
