"""The self-test: a plan that computes something else than the reference is caught, named and passed over."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from convtrain.errors import RunError
from convtrain.gpu.plan import ExecutionPlan
from convtrain.graph.builder import Graph
from convtrain.train import session as session_module
from convtrain.train.session import Session, SessionOptions
from cook import build
from cook.build import CookOptions, cook
from cook.model import ModelConfig
from cook.recipes.reference import Reference
from workspace import TINY, photograph


def fused(model: ModelConfig) -> Graph:
    """A plan called fused that is the reference of ``model``."""
    graph = Reference(model).build()
    graph.name = "fused"
    return graph


@pytest.fixture(params=["right", "wrong"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> Path:
    """A folder with an archive of two plans, whose ``fused`` is right, or weighs one term of the loss wrongly."""

    def recipe(model: ModelConfig) -> list[Graph]:
        return [Reference(model).build(), fused(model if kind == "right" else replace(model, lambda_c=1.0))]

    monkeypatch.setattr(build, "find_recipe", lambda name: recipe)
    monkeypatch.setattr("convtrain.train.selftest.TRUSTED_KINDS", ())  # the tests run on CPUs
    photo = tmp_path / "photo.png"
    Image.fromarray(photograph(7, 6)).save(photo)
    cook(CookOptions(image=photo, settings=TINY, out=tmp_path / "res_train"))
    return tmp_path / "res_train"


def test_auto_takes_the_plan_that_agrees_and_names_the_one_that_does_not(archive: Path, kind: str) -> None:
    for _ in range(2):  # the second time from the recorded verdict
        with Session(SessionOptions(archive)) as session:
            assert session.plan.name == ("fused" if kind == "right" else "reference")
            assert ("differs from the reference in gradient of" in session.describe()) == (kind == "wrong")
    (known,) = json.loads((archive / "pipelines" / "self-test.json").read_text()).values()
    assert (known is None) == (kind == "right")


def test_a_wrong_plan_asked_for_by_name_is_refused(archive: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = SessionOptions(archive, plan="fused")
    if kind == "wrong":
        with pytest.raises(RunError, match=r"Plan fused: self-test failed.*--plan reference"):
            Session(options)
        monkeypatch.setenv("CONV_NO_SELF_TEST", "1")
    with Session(options) as session:
        assert session.plan.name == "fused"


def test_a_damaged_record_only_costs_another_test(archive: Path, kind: str) -> None:
    record = archive / "pipelines" / "self-test.json"
    record.parent.mkdir()
    record.write_text("{")
    with Session(SessionOptions(archive)) as session:
        assert session.plan.name == ("fused" if kind == "right" else "reference")
    assert len(json.loads(record.read_text())) == 1


@pytest.mark.parametrize("kind", ["wrong"], indirect=True)
def test_a_plan_is_not_judged_where_the_reference_cannot_run(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RunError("out of device memory")

    monkeypatch.setattr("convtrain.train.selftest._one_epoch", fails)
    with Session(SessionOptions(archive)) as session:
        assert session.plan.name == "fused"
    assert not (archive / "pipelines" / "self-test.json").exists()


def test_the_reference_falls_back_to_fp32_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def recipe(model: ModelConfig) -> list[Graph]:
        graph = Reference(model).build()
        graph.storages = ("f16", "f32")
        return [graph]

    def distrust(execution: ExecutionPlan, *_: object) -> str | None:
        return "self-test failed." if execution.storage == "f16" else None

    monkeypatch.setattr(build, "find_recipe", lambda name: recipe)
    monkeypatch.setattr(session_module, "verdict", distrust)
    photo = tmp_path / "photo.png"
    Image.fromarray(photograph(7, 6)).save(photo)
    cook(CookOptions(image=photo, settings=TINY, out=tmp_path / "res_train"))
    with Session(SessionOptions(tmp_path / "res_train", plan="reference")) as session:
        assert session.execution.storage == "f32"
        assert "not plan reference on f16 storage: self-test failed." in session.describe()
