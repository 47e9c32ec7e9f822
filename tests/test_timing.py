"""The table of ``CONV_TIME=1``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convtrain.gpu.plan import plan_execution
from convtrain.gpu.switches import Switches
from convtrain.gpu.timings import PassTiming, interval
from convtrain.graph.types import Plan
from convtrain.report.timing import TimingLog
from device_zoo import H200, PLAIN, make_plan


@pytest.mark.parametrize(
    ("start", "end", "bits", "ticks"),
    [
        (10, 25, 64, 15),
        (2**64 - 5, 7, 64, 12),
        (2**36 - 5, 7, 36, 12),
        (2**32 - 1, 0, 32, 1),
        (5, 5, 36, 0),
        ((9 << 36) + 3, (2 << 36) + 8, 36, 5),  # bits beyond the valid ones mean nothing
    ],
)
def test_intervals_wrap_at_the_valid_bits(start: int, end: int, bits: int, ticks: int) -> None:
    assert interval(start, end, bits) == ticks


def plan() -> Plan:
    made = make_plan(nbytes=4_000_000, flops=2_000_000)
    covered = replace(made.passes[1], covers=("upd", "muon_prep", "muon_upd", "muon_upd"))
    return replace(made, passes=(made.passes[0], covered))


def test_rows_hold_means_rates_and_shares() -> None:
    log = TimingLog(plan_execution(H200, plan()))
    log.add([PassTiming(0, 1000), PassTiming(1, 3000)])
    log.add([PassTiming(0, 3000), PassTiming(1, 5000)])
    first, second = log.rows()
    assert (first.microseconds, second.microseconds) == (2.0, 4.0)
    assert (first.share, second.share) == pytest.approx((1 / 3, 2 / 3))
    assert second.gigabytes_per_second == pytest.approx(1000.0)
    assert second.gigaflops == pytest.approx(500.0)
    assert second.workgroups == (100, 1, 1)
    assert (first.name, first.variant, first.group) == ("first", "scalar", "forward")


def test_the_table_has_rows_groups_and_the_wall_time() -> None:
    log = TimingLog(plan_execution(H200, plan()))
    log.add([PassTiming(0, 1_000_000), PassTiming(1, 3_000_000)])
    text = log.render(0.005)
    lines = text.splitlines()
    assert "mean of 1 epoch on NVIDIA H200, plan reference" in lines[0]
    assert lines[1].split() == ["#", "pass", "variant", "workgroups", "µs", "share", "GB/s", "GFLOP/s", "covers"]
    assert lines[3].split()[:8] == ["1", "second", "scalar", "100×1×1", "3,000.0", "75.0", "%", "1.3"]
    assert lines[3].endswith("upd, muon_prep, muon_upd ×2")
    assert ["forward", "1", "1.000", "25.0", "%"] in [line.split() for line in lines]
    assert ["update", "1", "3.000", "75.0", "%"] in [line.split() for line in lines]
    assert lines[-1] == "all passes 4.000 ms, wall time 5.000 ms per epoch (20.0 % of it outside the passes)"


def test_a_plan_that_covers_itself_has_no_such_column() -> None:
    made = make_plan()
    itself = replace(made, passes=tuple(replace(item, covers=(item.name,)) for item in made.passes))
    log = TimingLog(plan_execution(H200, itself))
    log.add([PassTiming(0, 1000)])
    assert "covers" not in log.render(1.0)


def test_a_pass_that_took_no_measurable_time_has_no_rate() -> None:
    log = TimingLog(plan_execution(H200, plan()))
    log.add([PassTiming(1, 0)])
    assert log.rows()[0].gigaflops == 0.0
    assert "all passes 0.000 ms" in log.render(0.0)


def test_timestamps_that_were_switched_off_are_not_the_devices_fault() -> None:
    log = TimingLog(plan_execution(H200, plan(), Switches(no_timestamps=True)))
    log.add([])
    assert log.render(1.0) == "No times by pass: CONV_NO_TIMESTAMPS is set."


def test_a_device_without_timestamps_says_so() -> None:
    log = TimingLog(plan_execution(PLAIN, plan()))
    log.add([])
    assert log.render(1.0) == "No times by pass: device 0 (A plain device) has no timestamps on its compute queue."


def test_no_epoch_no_table() -> None:
    assert "no epoch ran" in TimingLog(plan_execution(H200, plan())).render(0.0)
