"""Adam and Muon alone: the update passes on made-up weights, gradients and moments, against the oracle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from convtrain.train.schedule import bias_corrections
from convtrain.train.session import Session, SessionOptions
from convtrain.train.stepper import set_control
from oracle.layout import Array, Config, Slot, slots
from oracle.optimisers import adam, muon
from workspace import Workspace, photograph, relative_error

LR, STEP = 1e-3, 7


@dataclass
class Update:
    """The state before and after one execution of the update passes, by buffer label."""

    config: Config
    before: dict[str, Array]
    after: dict[str, Array]


@pytest.fixture(scope="module", params=[(8, 1), (16, 3), (40, 2)], ids=["nf8", "nf16", "nf40"])
def updated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Update:
    nf, layers = request.param
    place = Workspace(tmp_path_factory.mktemp("update"))
    place.cook(photograph(6, 5), nf=nf, layers=layers, ks=3, kn=4)
    config, rng = place.config(), np.random.default_rng(nf)
    last = slots(config)[-1]
    before = {name: rng.normal(size=last.span.stop).astype(np.float32) for name in ("WBuf", "GW", "adam_m")}
    before["adam_v"] = np.square(rng.normal(size=last.span.stop)).astype(np.float32)
    before["muon_b"] = rng.normal(size=layers * 2 * nf * nf).astype(np.float32)
    before["GW"][last.offset + 3 :] = before["adam_m"][last.offset + 3 :] = 0  # the unused rest of head.b
    with Session(SessionOptions(place.archive.parent, plan="reference")) as session:
        for label, values in before.items():
            session.engine.write(label, values.tobytes())
        controls = dict(zip(("beta1_correction", "beta2_correction"), bias_corrections(STEP), strict=True), lr=LR)
        for name, value in controls.items():
            set_control(session.engine, session.plan, name, value)
        session.engine.run(tuple(item.index for item in session.plan.passes if item.group == "update"))
        after = {label: np.frombuffer(session.engine.read(label), np.float32) for label in before}
    before, after = ({label: values.astype(np.float64) for label, values in state.items()} for state in (before, after))
    return Update(config, before, after)


def is_mix(slot: Slot) -> bool:
    return slot.name.startswith("mix.")


def test_adam(updated: Update) -> None:
    config, before, after = updated.config, updated.before, updated.after
    for slot in slots(config):
        if is_mix(slot):
            continue
        p, g, m, v = (before[label][slot.span].copy() for label in ("WBuf", "GW", "adam_m", "adam_v"))
        adam(p, g, m, v, lr=LR, step=STEP)
        np.testing.assert_allclose(after["adam_m"][slot.span], m, rtol=1e-5, atol=1e-6, err_msg=slot.name)
        np.testing.assert_allclose(after["adam_v"][slot.span], v, rtol=1e-5, atol=1e-6, err_msg=slot.name)
        np.testing.assert_allclose(after["WBuf"][slot.span], p, rtol=1e-6, atol=1e-6, err_msg=slot.name)


def test_muon(updated: Update) -> None:
    config, before, after = updated.config, updated.before, updated.after
    shape = (2 * config.nf, config.nf)
    momenta = before["muon_b"].reshape(-1, *shape)
    for layer, slot in enumerate(filter(is_mix, slots(config))):
        p, g, b = before["WBuf"][slot.span].reshape(shape), before["GW"][slot.span].reshape(shape), momenta[layer]
        old = p.copy()
        muon(p, g, b, lr=LR, scale=config.muon_scale)
        np.testing.assert_allclose(after["muon_b"].reshape(-1, *shape)[layer], b, rtol=1e-5, atol=1e-6)
        assert relative_error(after["WBuf"][slot.span].reshape(shape) - old, p - old) <= 1e-4, slot.name
