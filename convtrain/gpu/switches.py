"""Kill switches: the environment's way to take a feature away from a device, for bisecting a driver's faults.

======================== =====================================================================================
variable                 effect
======================== =====================================================================================
CONV_NO_COOPMAT          no cooperative-matrix variants
CONV_NO_FP16             no fp16 arithmetic and no 16-bit storage (nor matrices, whose elements are fp16)
CONV_NO_SUBGROUP_SIZE    no required subgroup size
CONV_NO_TEXELS           no buffers read as texels
CONV_NO_HOST_IMPORT      uniforms and host buffers in mapped memory instead of imported host memory
CONV_NO_PIPELINE_CACHE   neither read nor write the pipeline cache on disk
CONV_NO_TIMESTAMPS       no per-pass GPU times
CONV_NO_SELF_TEST        use a plan without comparing it with the reference first
CONV_PLAN                the plan that ``auto`` means: a plan's name
CONV_VALIDATE            run under the Khronos validation layer with synchronisation validation
======================== =====================================================================================

A switch is on when its variable is set to anything but an empty string or ``0``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from convtrain.gpu.snapshot import DeviceSnapshot


@dataclass(frozen=True)
class Switches:
    """What the environment takes away. The default takes nothing."""

    no_coopmat: bool = False
    no_fp16: bool = False
    no_subgroup_size: bool = False
    no_texels: bool = False
    no_host_import: bool = False
    no_pipeline_cache: bool = False
    no_timestamps: bool = False
    no_self_test: bool = False
    validate: bool = False
    plan: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Switches:
        """Read the variables of this module's table, for example from ``os.environ``."""

        def on(name: str) -> bool:
            return environment.get(name, "") not in ("", "0")

        return cls(
            no_coopmat=on("CONV_NO_COOPMAT"),
            no_fp16=on("CONV_NO_FP16"),
            no_subgroup_size=on("CONV_NO_SUBGROUP_SIZE"),
            no_texels=on("CONV_NO_TEXELS"),
            no_host_import=on("CONV_NO_HOST_IMPORT"),
            no_pipeline_cache=on("CONV_NO_PIPELINE_CACHE"),
            no_timestamps=on("CONV_NO_TIMESTAMPS"),
            no_self_test=on("CONV_NO_SELF_TEST"),
            validate=on("CONV_VALIDATE"),
            plan=environment.get("CONV_PLAN") or None,
        )

    def apply(self, snapshot: DeviceSnapshot) -> DeviceSnapshot:
        """The same device without the features that are switched off."""
        if self.no_coopmat:
            snapshot = replace(snapshot, matrices=())
        if self.no_fp16:
            wide = tuple(m for m in snapshot.matrices if "f16" not in (m.a, m.b, m.c, m.result))
            snapshot = replace(snapshot, float16=False, storage_16bit=False, matrices=wide)
        if self.no_subgroup_size:
            subgroup = replace(snapshot.subgroup, size_control=False, full_subgroups=False)
            snapshot = replace(snapshot, subgroup=subgroup)
        if self.no_texels:
            snapshot = replace(snapshot, limits=replace(snapshot.limits, texel_elements=0))
        if self.no_host_import:
            snapshot = replace(snapshot, host_import_alignment=None)
        if self.no_timestamps:
            snapshot = replace(snapshot, timestamp_bits=0)
        return snapshot


NO_SWITCHES = Switches()
