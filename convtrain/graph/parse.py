"""Rebuild plan descriptions from the manifest's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convtrain.graph.types import (
    Access,
    Buffer,
    Control,
    Kind,
    MatrixShape,
    Pass,
    Plan,
    Port,
    Requirements,
    Roles,
    Uniform,
    UniformField,
    Variant,
)


def _triple(values: Any) -> tuple[int, int, int]:
    x, y, z = values
    return int(x), int(y), int(z)


def _variant(data: Mapping[str, Any]) -> Variant:
    needs = dict(data["requires"])
    matrix = needs.pop("matrix")
    return Variant(
        **{
            **data,
            "local": _triple(data["local"]),
            "groups": _triple(data["groups"]),
            "texel_ports": tuple(data["texel_ports"]),
            "requires": Requirements(
                **{
                    **needs,
                    "matrix": MatrixShape(**matrix) if matrix else None,
                    "subgroup_ops": tuple(needs["subgroup_ops"]),
                    "capabilities": tuple(needs["capabilities"]),
                }
            ),
        }
    )


def _uniform(data: Mapping[str, Any] | None) -> Uniform | None:
    if data is None:
        return None
    return Uniform(**{**data, "fields": tuple(UniformField(**item) for item in data["fields"])})


def _pass(data: Mapping[str, Any]) -> Pass:
    return Pass(
        **{
            **data,
            "ports": tuple(
                Port(**{**item, "kind": Kind(item["kind"]), "access": Access(item["access"])}) for item in data["ports"]
            ),
            "variants": tuple(_variant(item) for item in data["variants"]),
            "uniform": _uniform(data["uniform"]),
            "covers": tuple(data["covers"]),
        }
    )


def _roles(data: Mapping[str, Any]) -> Roles:
    controls = {name: tuple(Control(**item) for item in items) for name, items in data["controls"].items()}
    return Roles(
        **{
            **data,
            "loss_fields": tuple(data["loss_fields"]),
            "average": tuple(data["average"]),
            "controls": controls,
        }
    )


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """The inverse of :func:`convtrain.graph.types.to_json` for a plan.

    Raises KeyError, TypeError or ValueError on foreign data.
    """
    return Plan(
        name=data["name"],
        storages=tuple(data["storages"]),
        passes=tuple(_pass(item) for item in data["passes"]),
        buffers=tuple(Buffer(**{**item, "shape": tuple(item["shape"])}) for item in data["buffers"]),
        roles=_roles(data["roles"]),
    )
