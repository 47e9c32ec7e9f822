"""Pipelines and descriptor sets: one bound pass for each pass of an execution plan."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from convtrain.errors import InputError, RunError
from convtrain.gpu.live import vk
from convtrain.gpu.live.device import Device
from convtrain.gpu.placement import Slot, round_up
from convtrain.gpu.plan import Choice, ExecutionPlan, uniform_key
from convtrain.graph.types import Pass

_Bindings = tuple[tuple[int, bool], ...]
"""The buffers of set 0: binding, and whether it is a texel view."""
_SPIRV_MAGIC = 0x07230203
_NEWEST_SPIRV = {1: 3, 2: 5, 3: 6}  # minor version of SPIR-V that a minor version of Vulkan 1 takes


_STORAGE, _UNIFORM, _TEXELS = (
    f"VK_DESCRIPTOR_TYPE_{name}" for name in ("STORAGE_BUFFER", "UNIFORM_BUFFER", "UNIFORM_TEXEL_BUFFER")
)


def _buffer_kind(view: bool) -> str:
    """The descriptor type of a buffer of set 0, by the constant's name."""
    return _TEXELS if view else _STORAGE


@dataclass(frozen=True)
class BoundPass:
    """What recording a dispatch of one pass needs."""

    pipeline: Any
    layout: Any
    sets: Any  # a C array of descriptor sets
    set_count: int
    dispatch_base: bool


@dataclass(frozen=True)
class _Kind:
    """What makes two passes share a pipeline."""

    spirv: str
    entry: str
    bindings: _Bindings
    uniform: bool
    subgroup_size: int | None
    dispatch_base: bool


def _kind(execution: ExecutionPlan, item: Pass, choice: Choice) -> _Kind:
    subgroup = execution.snapshot.subgroup
    fixed = choice.variant.requires.subgroup_size if subgroup.size_control and subgroup.full_subgroups else None
    return _Kind(
        choice.variant.spirv,
        choice.variant.entry,
        tuple((port.number, port.number in choice.variant.texel_ports) for port in item.ports),
        item.uniform is not None,
        fixed,
        item.index in execution.split,
    )


def _words(code: bytes, title: str, minor: int) -> Any:
    """SPIR-V as C words. Raises InputError for bytes that are not SPIR-V, or too new for the device."""
    if len(code) % 4 or len(code) < 20:
        raise InputError(f"The shader of pass {title} is not SPIR-V. Cook again.")
    words = vk.ffi.new("uint32_t[]", len(code) // 4)
    vk.ffi.memmove(words, code, len(code))
    if words[0] != _SPIRV_MAGIC:
        raise InputError(f"The shader of pass {title} is not SPIR-V. Cook again.")
    version, newest = words[1] >> 8 & 0xFF, _NEWEST_SPIRV[minor]
    if version > newest:
        raise InputError(f"The shader of pass {title} is SPIR-V 1.{version}, and this device takes 1.{newest} at most.")
    return words


class Pipelines:
    """Builds every pipeline of an execution plan; all objects live until the device closes."""

    def __init__(
        self, device: Device, execution: ExecutionPlan, read_blob: Callable[[str], bytes | memoryview], cache: Any
    ) -> None:
        self._device, self._execution, self._cache = device, execution, cache
        self._set_layouts: dict[_Bindings | None, Any] = {}
        self._layouts: dict[tuple[_Bindings, bool], Any] = {}
        self._views: dict[Slot, Any] = {}
        plan = execution.plan
        self._kinds = [_kind(execution, plan.passes[choice.index], choice) for choice in execution.choices]
        for kind in self._kinds:
            self._layout(kind)
        titles = {kind: f"{item.index} {item.name}" for kind, item in zip(self._kinds, plan.passes, strict=True)}
        self._pipelines = self._build(titles, read_blob)

    def _set_layout(self, bindings: _Bindings | None) -> Any:
        """The layout of set 0 with these buffers; None: of set 1, one uniform block."""
        if bindings not in self._set_layouts:
            structs = vk.Structs()
            kinds = [(0, _UNIFORM)] if bindings is None else [(number, _buffer_kind(view)) for number, view in bindings]
            entries = [
                structs.new(
                    "VkDescriptorSetLayoutBinding",
                    binding=number,
                    descriptorType=getattr(vk, kind),
                    descriptorCount=1,
                    stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT,
                )
                for number, kind in kinds
            ]
            info = structs.new("VkDescriptorSetLayoutCreateInfo", bindingCount=len(entries), pBindings=entries)
            made = self._device.own("VkDescriptorSetLayout", info, doing="creating a descriptor layout")
            self._set_layouts[bindings] = made
        return self._set_layouts[bindings]

    def _layouts_of(self, kind: _Kind) -> list[Any]:
        """The layouts of a pass's descriptor sets, in order."""
        buffers = self._set_layout(kind.bindings)
        return [buffers, self._set_layout(None)] if kind.uniform else [buffers]

    def _layout(self, kind: _Kind) -> Any:
        key = (kind.bindings, kind.uniform)
        if key not in self._layouts:
            structs = vk.Structs()
            sets = self._layouts_of(kind)
            info = structs.new("VkPipelineLayoutCreateInfo", setLayoutCount=len(sets), pSetLayouts=sets)
            self._layouts[key] = self._device.own("VkPipelineLayout", info, doing="creating a pipeline layout")
        return self._layouts[key]

    def _build(self, titles: dict[_Kind, str], read_blob: Callable[[str], bytes | memoryview]) -> dict[_Kind, Any]:
        minor = min(self._execution.snapshot.api_version[1], 3)
        codes = {kind: _words(bytes(read_blob(kind.spirv)), title, minor) for kind, title in titles.items()}
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as workers:
            made = list(workers.map(self._compile, titles, codes.values()))
        for result, pipeline in made:
            if result == vk.VK_SUCCESS:
                destroy = vk.lib.vkDestroyPipeline
                self._device.resources.callback(destroy, self._device.handle, pipeline, vk.ffi.NULL)
        for (result, _), title in zip(made, titles.values(), strict=True):
            vk.check(result, f"building the pipeline of pass {title}")
        return {kind: pipeline for kind, (_, pipeline) in zip(titles, made, strict=True)}

    def _compile(self, kind: _Kind, code: Any) -> tuple[int, Any]:
        """(Vulkan result, pipeline); called on several threads at once."""
        structs, device = vk.Structs(), self._device.handle
        module = vk.out("VkShaderModule")
        size = vk.ffi.sizeof(code)
        info = structs.new("VkShaderModuleCreateInfo", codeSize=size, pCode=code)
        result = vk.lib.vkCreateShaderModule(device, info, vk.ffi.NULL, module)
        if result != vk.VK_SUCCESS:
            return result, None
        chain, flags = vk.ffi.NULL, 0
        if kind.subgroup_size is not None:
            chain = structs.new(
                "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo", requiredSubgroupSize=kind.subgroup_size
            )
            flags = vk.FULL_SUBGROUPS
        stage = structs.new(
            "VkPipelineShaderStageCreateInfo",
            pNext=chain,
            flags=flags,
            stage=vk.VK_SHADER_STAGE_COMPUTE_BIT,
            module=module[0],
            pName=kind.entry,
        )
        info = structs.new(
            "VkComputePipelineCreateInfo",
            flags=vk.DISPATCH_BASE if kind.dispatch_base else 0,
            stage=stage,
            layout=self._layout(kind),
            basePipelineIndex=-1,
        )
        pipeline = vk.out("VkPipeline")
        result = vk.lib.vkCreateComputePipelines(device, self._cache, 1, info, vk.ffi.NULL, pipeline)
        vk.lib.vkDestroyShaderModule(device, module[0], vk.ffi.NULL)
        return result, pipeline[0]

    def bind(self, locate: Callable[[str], tuple[Any, Slot]]) -> tuple[BoundPass, ...]:
        """Descriptor sets for every pass; ``locate`` gives the buffer object and slot of a key. Raises RunError."""
        sets = self._allocate_sets()
        bound = []
        for kind, item, handles in zip(self._kinds, self._execution.plan.passes, sets, strict=True):
            views = dict(kind.bindings)
            targets = [
                (handles[0], port.number, locate(port.buffer), _buffer_kind(views[port.number])) for port in item.ports
            ]
            if kind.uniform:
                targets.append((handles[1], 0, locate(uniform_key(item.index)), _UNIFORM))
            self._write_sets(targets)
            array = vk.ffi.new("VkDescriptorSet[]", handles)
            bound.append(BoundPass(self._pipelines[kind], self._layout(kind), array, len(handles), kind.dispatch_base))
        return tuple(bound)

    def _allocate_sets(self) -> list[list[Any]]:
        structs = vk.Structs()
        layouts = [
            [self._set_layout(k.bindings), *([self._set_layout(None)] if k.uniform else [])] for k in self._kinds
        ]
        flat = [layout for group in layouts for layout in group]
        counts = Counter(_buffer_kind(view) for kind in self._kinds for _, view in kind.bindings)
        counts[_UNIFORM] = sum(kind.uniform for kind in self._kinds)
        sizes = [
            structs.new("VkDescriptorPoolSize", type=getattr(vk, kind), descriptorCount=count)
            for kind, count in counts.items()
            if count
        ]
        info = structs.new("VkDescriptorPoolCreateInfo", maxSets=len(flat), poolSizeCount=len(sizes), pPoolSizes=sizes)
        pool = self._device.own("VkDescriptorPool", info, doing="creating a descriptor pool")
        ask = structs.new(
            "VkDescriptorSetAllocateInfo", descriptorPool=pool, descriptorSetCount=len(flat), pSetLayouts=flat
        )
        made = vk.ffi.new("VkDescriptorSet[]", len(flat))
        if vk.lib.vkAllocateDescriptorSets(self._device.handle, ask, made) != vk.VK_SUCCESS:
            raise RunError(f"{self._device.snapshot.title} could not allocate {len(flat)} descriptor sets.")
        rest = iter(made)
        return [[next(rest) for _ in group] for group in layouts]

    def _view(self, buffer: Any, slot: Slot) -> Any:
        """The slot as texels of four floats."""
        if slot not in self._views:
            info = vk.Structs().new(
                "VkBufferViewCreateInfo",
                buffer=buffer,
                format=vk.VK_FORMAT_R32G32B32A32_SFLOAT,
                offset=slot.offset,
                range=slot.size,
            )
            self._views[slot] = self._device.own("VkBufferView", info, doing="creating a texel view")
        return self._views[slot]

    def _write_sets(self, targets: list[tuple[Any, int, tuple[Any, Slot], str]]) -> None:
        structs = vk.Structs()
        writes = []
        for handle, binding, (buffer, slot), kind in targets:
            seen: dict[str, Any]
            if kind == _TEXELS:
                seen = {"pTexelBufferView": [self._view(buffer, slot)]}
            else:
                span = slot.size if kind == _UNIFORM else round_up(slot.size, 4)
                where = structs.new("VkDescriptorBufferInfo", buffer=buffer, offset=slot.offset, range=span)
                seen = {"pBufferInfo": where}
            writes.append(
                structs.new(
                    "VkWriteDescriptorSet",
                    dstSet=handle,
                    dstBinding=binding,
                    descriptorCount=1,
                    descriptorType=getattr(vk, kind),
                    **seen,
                )
            )
        array = structs.array("VkWriteDescriptorSet", writes)
        vk.lib.vkUpdateDescriptorSets(self._device.handle, len(writes), array, 0, vk.ffi.NULL)
