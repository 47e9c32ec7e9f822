"""``make agree``: a plan that computes something else is named, and the exit code says so."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import agreement
from bench.agreement import Candidate

SLOTS = [{"name": "stem.b", "offset": 0, "shape": [3]}, {"name": "mix.0", "offset": 3, "shape": [2, 2]}]


class Convtrain:
    """Stands in for the command line: plan ``fused`` is off by ``drift`` in the last number of GW."""

    def __init__(self, drift: float) -> None:
        self._drift = drift
        self._seen = 0

    def __call__(self, candidate: Candidate | None, folder: Path, verb: str, *words: Any, parse: bool = False) -> Any:
        if verb == "info":
            return {"plans": {"reference": [], "fused": []}, "weights": {"slots": SLOTS}}
        gradient = np.arange(1.0, 8.0)
        if candidate is not None and candidate.plan == "fused":
            gradient[-1] *= 1 + self._drift
        for name in (word.split("=")[1] for word in words if str(word).startswith("--dump")):
            np.save(folder / f"{name}.npy", gradient)
        (folder / "res_train" / "checkpoint.res").write_bytes(b"weights")
        return {"plan": "fused", "metrics": {"psnr": 39.6, "psnr_u8": 39.5}}


@pytest.fixture
def cooked(tmp_path: Path) -> Path:
    (tmp_path / "a" / "res_train").mkdir(parents=True)
    (tmp_path / "a" / "res_train" / "train.res").touch()
    return tmp_path / "a"


def examine(cooked: Path, monkeypatch: pytest.MonkeyPatch, drift: float, *more: str) -> int:
    monkeypatch.setattr(agreement, "convtrain", Convtrain(drift))
    monkeypatch.setattr(sys, "argv", ["agreement", "--folders", str(cooked), *more])
    return agreement.main()


def test_plans_that_agree(cooked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert examine(cooked, monkeypatch, 0.005) == 0
    assert "NO" not in capsys.readouterr().out


@pytest.mark.parametrize("drift", [0.1, float("nan")])
def test_a_plan_that_does_not_agree(
    cooked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], drift: float
) -> None:
    assert examine(cooked, monkeypatch, drift) == 1
    wrong = [line for line in capsys.readouterr().out.splitlines() if line.endswith("NO |")]
    assert len(wrong) == 3  # fresh, trained by the oracle, and by itself
    assert all("| fused" in line and "(mix.0)" in line for line in wrong)


@pytest.mark.parametrize(("quality", "code"), [(39.1, 1), (39.4, 0)])
def test_a_curve_is_held_to_the_limit_and_the_control_to_none(
    cooked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], quality: float, code: int
) -> None:
    """The oracle reaches 39.6 dB, and 38 when it was nudged once."""

    class Chaotic(Convtrain):
        def __call__(self, candidate: Candidate | None, folder: Path, *words: Any, parse: bool = False) -> Any:
            found = super().__call__(candidate, folder, *words, parse=parse)
            if parse and candidate is not None and words[0] == "run":
                reached = {"fused": quality, agreement.CONTROL: 38.0}.get(candidate.name, 39.6)
                return {**found, "metrics": {"psnr": reached, "psnr_u8": reached}}
            return found

    monkeypatch.setattr(agreement, "convtrain", Chaotic(0.0))
    monkeypatch.setattr(sys, "argv", ["agreement", "--folders", str(cooked)])
    assert agreement.main() == code
    control = next(line for line in capsys.readouterr().out.splitlines() if agreement.CONTROL in line)
    assert "at most 1.60 apart" in control
    assert control.endswith(" – |")


def test_folders_of_one_name_are_told_apart(
    cooked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "b" / "a"
    shutil.copytree(cooked, other)
    monkeypatch.setattr(agreement, "convtrain", Convtrain(0.0))
    monkeypatch.setattr(sys, "argv", ["agreement", "--folders", f"{cooked},{other}", "--jobs", "2"])
    assert agreement.main() == 0
    rows = capsys.readouterr().out
    assert f"| {cooked}, 600 epochs" in rows
    assert f"| {other}, 600 epochs" in rows


def test_errors_are_relative_to_the_slot() -> None:
    expected = np.array([1.0, 0.0, 0.0, 100.0, 0.0, 0.0, 0.0])
    found = expected + 0.1
    errors = agreement.gradient_errors(found, expected, SLOTS)
    assert errors["stem.b"] == pytest.approx(0.1 * np.sqrt(3))
    assert errors["mix.0"] == pytest.approx(0.1 * np.sqrt(4) / 100)


def test_a_folder_that_was_not_cooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine(tmp_path / "none", monkeypatch, 0.0) == 2
    assert "cook there first" in capsys.readouterr().err


def test_a_plan_that_does_not_exist(
    cooked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine(cooked, monkeypatch, 0.0, "--plans", "fused,nosuch") == 2
    archive = cooked / "res_train" / "train.res"
    expected = f"There is no plan nosuch in {archive}: its plans are reference, fused\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("option", ["--jobs", "--epochs", "--trained"])
def test_numbers_below_one(cooked: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        examine(cooked, monkeypatch, 0.0, option, "0")


def test_an_interruption_prints_the_table_so_far(
    cooked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(agreement.Examination, "curves", stop)
    assert examine(cooked, monkeypatch, 0.0) == 130
    found = capsys.readouterr()
    assert "| one epoch, fresh weights " in found.out
    assert found.err.endswith("\nstopped\n")
