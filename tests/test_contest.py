"""The order of the benchmark's measurements, with both contenders made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench import contest
from bench.contest import Contest, preset_of
from bench.machine import Machine
from bench.options import parse
from bench.problem import Problem
from bench.rows import CONVTRAIN, PYTORCH, Row
from bench.vulkan.trainer import Cooked

MACHINE = Machine(True, {"name": "GPU"}, {"gpu": "GPU"}, {"matrix_flops_per_second": 1e15}, (), "CPU")
SPEED = {"fused-f16": 2.0, "reference": 40.0, "graph-bf16": 12.0, "graph-fp16-toeplitz": 5.0}


class Contenders:
    """Both sides: plan ``fused-f16`` is for 128 features, and ``calls`` holds what was trained, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, int, int, int]] = []
        self.broken: set[str] = set()
        monkeypatch.setattr(contest.convtrain, "cook", self.cook)
        monkeypatch.setattr(contest.convtrain, "train", self.convtrain)
        monkeypatch.setattr(contest.pytorch, "start", lambda python, cores=None: None)
        monkeypatch.setattr(contest.pytorch, "train", self.pytorch)

    def cook(self, folder: Path, problem: Problem, timeout: float) -> Cooked:
        plans = {"reference": 10, "fused-f16": 4} if problem.nf == 128 else {"reference": 10}
        return Cooked(folder, problem, plans, plans, frozenset({"fused-f16"} - {*plans}))

    def convtrain(self, cooked: Cooked, plan: str, epochs: int, timeout: float, device: str | None) -> Row:
        return self._row(CONVTRAIN, plan, cooked.problem, epochs)

    def pytorch(
        self, worker: None, folder: Path, problem: Problem, mode: str, epochs: int, seconds: float | None, *_: object
    ) -> Row:
        return self._row(PYTORCH, mode, problem, epochs)

    def _row(self, side: str, name: str, problem: Problem, epochs: int) -> Row:
        self.calls.append((name, problem.height, problem.nf, epochs))
        row = Row(side, name, problem.height, problem.width, problem.nf, epochs=epochs)
        if name in self.broken:
            row.error = "it broke"
        else:
            row.ms_per_epoch = SPEED[name]
        return row


def hold(folder: Path, *arguments: str) -> Contest:
    options = parse(["--modes", "graph-bf16,graph-fp16-toeplitz", *arguments])
    return Contest(MACHINE, options, preset_of(MACHINE, options), folder, lambda text: None)


def test_every_plan_and_mode_then_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contenders = Contenders(monkeypatch)
    held = hold(tmp_path, "--sizes", "128", "--features", "64", "--plans", "fused-f16,reference")
    kept: list[int] = []
    held.keep = lambda results: kept.append(len(results.rows) + len(results.sweep))
    held.compare()
    held.grow()
    assert [row.name for row in held.results.rows] == ["fused-f16", "reference", "graph-bf16", "graph-fp16-toeplitz"]
    assert [(row.name, row.height, row.nf) for row in held.results.sweep] == [
        ("fused-f16", 128, 128),
        ("reference", 128, 128),
        ("reference", 512, 64),
        ("graph-fp16-toeplitz", 128, 128),
        ("graph-fp16-toeplitz", 512, 64),
    ]
    assert kept == list(range(1, 10))
    assert contenders.calls[:2] == [("fused-f16", 512, 128, 5), ("fused-f16", 512, 128, 600)]


def test_what_was_prepared_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    contenders = Contenders(monkeypatch)
    arguments = ("--sizes", "128", "--features", "128", "--sweep-modes", "graph-bf16", "--work", str(tmp_path))
    held = hold(tmp_path, *arguments)
    held.prepare()
    compiled = [("graph-bf16", 128), ("graph-bf16", 512), ("graph-fp16-toeplitz", 512)]
    assert sorted(call[:2] for call in contenders.calls if call[3] == 1) == compiled
    assert sum(call[3] == 5 for call in contenders.calls) == 4  # two plans, two sizes
    contenders.calls.clear()
    held.compare()
    assert [call[3] for call in contenders.calls] == [600] * 4
    contenders.calls.clear()
    hold(tmp_path, *arguments).prepare()
    assert {call[3] for call in contenders.calls} == {5}  # PyTorch's cache is filled


def test_slow_plans_get_fewer_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Contenders(monkeypatch)
    held = hold(tmp_path, "--seconds", "8", "--modes", "")
    held.compare()
    assert {row.name: row.epochs for row in held.results.rows} == {"fused-f16": 600, "reference": 50}


def test_a_failure_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contenders = Contenders(monkeypatch)
    contenders.broken = {"reference", "graph-bf16"}
    held = hold(tmp_path)
    held.compare()
    assert [row.error for row in held.results.rows] == ["it broke", None, "it broke", None]


def test_a_plan_that_does_not_exist_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contenders = Contenders(monkeypatch)
    contenders.broken = {"fuzed"}
    held = hold(tmp_path, "--plans", "fuzed", "--modes", "")
    held.compare()
    assert [row.name for row in held.results.rows] == ["fuzed"]
