"""The pass list of plan `reference` as the design states it: names, order, groups, ports, labels, roles."""

from __future__ import annotations

import pytest

from convtrain.graph.builder import Graph, PassSpec
from convtrain.graph.types import Kind
from cook.model import ModelConfig
from cook.recipes.convsiren import Reference

PORTS = {
    "kern": "0 weights r, 1 kernel w",
    "stem_train": "0 weights r, 1 h w, 2 z w",
    "dw": "0 weights r, 1 kernel r, 2 cat rw",
    "pack_mix": "0 weights r, 1 panels w",
    "gemm_mix": "0 panels r, 1 planes r, 2 product w",
    "mix_unpack": "0 product r, 1 m w, 2 h w",
    "head": "0 weights r, 1 h r, 2 output w",
    "lossgrad": "0 output r, 1 target r, 2 dl_out w, 3 partials w",
    "ssim_fwd": "0 output r, 1 target r, 2 coefficients w, 3 partials w",
    "ssim_add": "0 output r, 1 target r, 2 dl_out rw, 3 coefficients r, 4 loss_partials r, 5 ssim_partials r, 6 loss w",
    "bwd_head_x": "0 weights r, 1 dl_out r, 2 dh w",
    "bwd_head_w": "0 h r, 1 dl_out r, 2 gradient w",
    "bwd_sin_dm": "0 m r, 1 dh r, 2 dm w, 3 dm_pixels w",
    "pack_wmix": "0 weights r, 1 panels w",
    "gemm_mixx": "0 panels r, 1 planes r, 2 product w",
    "unpack_dm": "0 dcat r, 1 dd w, 2 db_partials w",
    "gemm_mixw": "0 cat r, 1 dm_pixels r, 2 partials w",
    "reduce_mixw": "0 partials r, 1 gradient w",
    "bwd_dw_x": "0 kernel r, 1 dcat r, 2 dd r, 3 dh w",
    "bwd_dw_k": "0 cat r, 1 dd r, 2 dk_partials w",
    "bwd_kern": "0 weights r, 1 dk_partials r, 2 db_partials r, 3 gradient rw",
    "bwd_stem": "0 z r, 1 dh r, 2 gradient w",
    "upd": "0 weights rw, 1 gradient r, 2 adam_m rw, 3 adam_v rw, 4 loss r",
    "muon_prep": "0 gradient r, 1 loss r, 2 momentum rw, 3 x w",
    "muon_gram": "0 x r, 1 gram w",
    "muon_poly": "0 gram r, 1 poly w",
    "muon_upd": "0 x r, 1 poly r, 2 x_next w",
    "muon_apply": "0 weights rw, 1 x r",
    "wavg_acc": "0 weights r, 1 ring w",
    "wavg_apply": "0 weights w, 1 ring r",
}
SHAPES = [(1, 1), (5, 9), (11, 30), (64, 48)]


def reference(**settings: float) -> Graph:
    return Reference(ModelConfig(**settings)).build()  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def seed() -> Graph:
    """The plan of the seed preset."""
    return reference()


def find(graph: Graph, name: str) -> list[PassSpec]:
    return [item for item in graph.passes if item.name == name]


def buffer(graph: Graph, item: PassSpec, port: str) -> str:
    """The id of the buffer behind a port, by the port's name."""
    return graph.buffer_id(item[next(spec.number for spec in item.ports if spec.name == port)])


def test_the_table_of_the_design(seed: Graph) -> None:
    table = {index: item.name for index, item in enumerate(seed.passes)}
    assert len(table) == 81
    assert (table[0], table[1], table[18]) == ("kern", "stem_train", "head")
    for layer in range(4):
        first = 2 + 4 * layer
        assert [table[first + n] for n in range(4)] == ["dw", "pack_mix", "gemm_mix", "mix_unpack"]
        first = 24 + 9 * layer
        assert [table[first + n] for n in range(9)] == [
            *("bwd_sin_dm", "pack_wmix", "gemm_mixx", "unpack_dm", "gemm_mixw"),
            *("reduce_mixw", "bwd_dw_x", "bwd_dw_k", "bwd_kern"),
        ]
    assert [table[n] for n in range(19, 24)] == ["lossgrad", "ssim_fwd", "ssim_add", "bwd_head_x", "bwd_head_w"]
    assert [table[n] for n in (60, 61, 62)] == ["bwd_stem", "upd", "muon_prep"]
    assert [table[n] for n in range(63, 78)] == ["muon_gram", "muon_poly", "muon_upd"] * 5
    assert [table[n] for n in (78, 79, 80)] == ["muon_apply", "wavg_acc", "wavg_apply"]


def test_groups_and_flags(seed: Graph) -> None:
    counts = {"forward": 19, "loss": 3, "backward": 39, "update": 18, "average": 2}
    assert [item.group for item in seed.passes] == [name for name, count in counts.items() for _ in range(count)]
    assert [item.index for item in seed.passes if item.infer] == list(range(19))
    assert [item.name for item in seed.passes if item.skip] == ["wavg_apply"]
    assert all(item.nbytes > 0 for item in seed.passes)


@pytest.mark.parametrize("layers", [1, 2, 3, 7])
def test_the_number_of_passes_follows_the_layers(layers: int) -> None:
    for height, width in SHAPES:
        graph = reference(height=height, width=width, nf=24, layers=layers, ks=3, halo=2)
        assert len(graph.passes) == 29 + 13 * layers
        graph.resolve_buffers({"weights": "", "target": ""})
        assert all(graph.resolve_ports(item) for item in graph.passes)


def test_ports(seed: Graph) -> None:
    for item in seed.passes:
        found = ", ".join(f"{port.number} {port.name} {port.access.value}" for port in item.ports)
        assert found == PORTS[item.name], item.name


def test_labels_and_state(seed: Graph) -> None:
    buffers = {item.label: item for item in seed.resolve_buffers({"weights": "w", "target": "t"})}
    assert (buffers["DlOut"].id, buffers["DlOut"].shape) == ("19-2", (512, 512, 3))
    assert buffers["Out"].shape == buffers["target"].shape == (512, 512, 3)
    assert buffers["KBuf"].shape == (128, 7, 7)
    assert buffers["WBuf"].elements == buffers["GW"].elements == 134_320
    assert {name for name, item in buffers.items() if item.dump} == {
        *("WBuf", "adam_m", "adam_v", "muon_b", "weight_ring")
    }
    assert {name: item.seed for name, item in buffers.items() if item.seed} == {"WBuf": "w", "target": "t"}
    assert [name for name, item in buffers.items() if item.host] == ["loss"]


def test_roles(seed: Graph) -> None:
    roles = seed.resolve_roles()
    assert (roles.weights, roles.output, roles.state) == ("0-0", "18-2", "state")
    assert roles.loss_fields == ("loss", "mse", "chroma", "grad", "ssim")
    assert (roles.average, roles.average_window) == ((80,), 10)
    drives = {name: [(item.index, item.field) for item in items] for name, items in roles.controls.items()}
    assert drives == {
        "offset_x": [(1, "offset_x")],
        "offset_y": [(1, "offset_y")],
        "lr": [(61, "lr"), (78, "lr")],
        "beta1_correction": [(61, "beta1_correction")],
        "beta2_correction": [(61, "beta2_correction")],
        "ring_slot": [(79, "slot")],
        "ring_first": [(80, "first")],
        "ring_count": [(80, "count")],
    }


def test_layers_are_chained(seed: Graph) -> None:
    """h_{l+1} is what the next layer reads, and each layer's backward passes see its own cat and m."""
    written = [buffer(seed, find(seed, "stem_train")[0], "h")]
    written += [buffer(seed, item, "h") for item in find(seed, "mix_unpack")]
    assert len(set(written)) == 5
    assert [buffer(seed, item, "cat") for item in find(seed, "dw")] == written[:4]
    assert [buffer(seed, item, "planes") for item in find(seed, "gemm_mix")] == written[:4]
    assert buffer(seed, find(seed, "head")[0], "h") == buffer(seed, find(seed, "bwd_head_w")[0], "h") == written[4]
    for name in ("gemm_mixw", "bwd_dw_k"):
        assert [buffer(seed, item, "cat") for item in find(seed, name)] == written[3::-1]
    phases = [buffer(seed, item, "m") for item in find(seed, "mix_unpack")]
    assert [buffer(seed, item, "m") for item in find(seed, "bwd_sin_dm")] == phases[::-1]


def test_one_weight_buffer_and_one_gradient(seed: Graph) -> None:
    for item in seed.passes:
        for port in item.ports:
            if port.name in ("weights", "gradient"):
                assert buffer(seed, item, port.name) == {"weights": "0-0", "gradient": "23-2"}[port.name]
                assert port.kind is Kind.SHARE or item.index in (0, 23)


def test_newton_schulz_goes_back_and_forth(seed: Graph) -> None:
    first = buffer(seed, find(seed, "muon_prep")[0], "x")
    steps = find(seed, "muon_upd")
    second = buffer(seed, steps[0], "x_next")
    assert [buffer(seed, item, "x") for item in steps] == [first, second, first, second, first]
    assert [buffer(seed, item, "x_next") for item in steps] == [second, first, second, first, second]
    assert buffer(seed, find(seed, "muon_apply")[0], "x") == second
