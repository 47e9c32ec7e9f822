"""Barriers from declared access, and the cutting of sequences into submits."""

from __future__ import annotations

import itertools
import random

import pytest

from convtrain.gpu.barriers import Accesses, Hazard, accesses, derive
from convtrain.gpu.submits import (
    MARGIN,
    PACES,
    Chunk,
    DispatchSequence,
    Pace,
    Step,
    arrange,
    batches,
    cut,
    estimate,
    pieces_of,
    proven_speed,
    split_dispatch,
)
from device_zoo import SCALAR, make_plan

PACE = Pace(bandwidth=1e9, arithmetic=1e9, budget=1.0)


def touch(index: int, reads: str = "", writes: str = "") -> Accesses:
    return Accesses(index, frozenset(reads), frozenset(writes))


def kinds(stream: list[Accesses]) -> list[str]:
    """For each dispatch, its hazards as ``RAW:a`` and so on, joined."""
    return [" ".join(f"{hazard.kind}:{hazard.buffer}" for hazard in found) for found in derive(stream)]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (("", "a"), ("a", ""), "RAW:a"),
        (("", "a"), ("", "a"), "WAW:a"),
        (("a", ""), ("", "a"), "WAR:a"),
        (("a", ""), ("a", ""), ""),
        (("a", "b"), ("c", "d"), ""),
        (("a", "b"), ("a", "c"), ""),
        (("a", "a"), ("a", "a"), "RAW:a WAW:a WAR:a"),
        (("a", "b"), ("b", "a"), "RAW:b WAR:a"),
    ],
)
def test_hazards_between_two(first: tuple[str, str], second: tuple[str, str], expected: str) -> None:
    assert kinds([touch(0, *first), touch(1, *second)]) == ["", expected]


def test_a_hazard_names_the_last_pass_that_touched_the_buffer() -> None:
    found = derive([touch(4, writes="a"), touch(5, writes="b"), touch(9, reads="a")])
    assert found == [(), (), (Hazard("RAW", "a", 4),)]


def test_a_barrier_settles_everything_before_it() -> None:
    assert kinds([touch(0, writes="ab"), touch(1, reads="a"), touch(2, reads="b")]) == ["", "RAW:a", ""]


def test_what_runs_after_a_barrier_counts_anew() -> None:
    stream = [touch(0, writes="a"), touch(1, reads="a", writes="b"), touch(2, reads="b"), touch(3, writes="b")]
    assert kinds(stream) == ["", "RAW:a", "RAW:b", "WAR:b"]


def test_readers_and_writers_far_apart_are_seen() -> None:
    stream = [touch(0, reads="z"), *[touch(n, reads="c", writes=f"{n}") for n in range(1, 9)], touch(9, writes="z")]
    assert kinds(stream) == [""] * 9 + ["WAR:z"]


def test_barriers_suffice_and_none_is_superfluous() -> None:
    """On random streams: any two conflicting dispatches have a barrier between, and each barrier has a conflict."""
    rng = random.Random(7)
    for _ in range(200):
        stream = [
            Accesses(
                n,
                frozenset(rng.sample("abcdef", rng.randint(0, 2))),
                frozenset(rng.sample("abcdef", rng.randint(0, 1))),
            )
            for n in range(12)
        ]
        found = derive(stream)
        last = 0
        for n, later in enumerate(stream):
            since = stream[last:n]
            conflicts = [
                early for early in since if early.writes & (later.reads | later.writes) or early.reads & later.writes
            ]
            assert bool(conflicts) == bool(found[n])
            if found[n]:
                last = n


def test_accesses_follow_the_ports() -> None:
    first, second = make_plan().passes
    assert accesses(first) == Accesses(0, frozenset({"0-0"}), frozenset({"0-1"}))
    assert accesses(second) == Accesses(1, frozenset({"0-1", "1-1"}), frozenset({"1-1"}))


@pytest.mark.parametrize("groups", [(7, 1, 1), (1, 9, 4), (3, 3, 3), (1, 1, 1), (65535, 2, 1)])
@pytest.mark.parametrize("parts", [1, 2, 3, 5, 1000])
def test_pieces_tile_the_grid(groups: tuple[int, int, int], parts: int) -> None:
    pieces = split_dispatch(groups, parts)
    assert len(pieces) == min(parts, max(groups))
    axis = groups.index(max(groups))
    position = 0
    for base, size in pieces:
        assert base[axis] == position
        assert size[axis] >= 1
        assert all(base[n] == 0 and size[n] == groups[n] for n in range(3) if n != axis)
        position += size[axis]
    assert position == groups[axis]


def test_pieces_are_even() -> None:
    sizes = [size[0] for _, size in split_dispatch((1000, 1, 1), 7)]
    assert max(sizes) - min(sizes) <= 1


def steps(*seconds: float) -> list[Step]:
    return [Step(n, (0, 0, 0), (1, 1, 1), (), length) for n, length in enumerate(seconds)]


@pytest.mark.parametrize(
    ("seconds", "sizes"),
    [
        ((), []),
        ((0.5,), [1]),
        ((0.5, 0.5), [2]),
        ((0.5, 0.6), [1, 1]),
        ((0.4, 0.4, 0.4, 0.4), [2, 2]),
        ((3.0, 0.1, 0.1), [1, 2]),
        ((0.1, 3.0, 0.1), [1, 1, 1]),
    ],
)
def test_cut_fills_up_to_the_budget(seconds: tuple[float, ...], sizes: list[int]) -> None:
    chunks = cut(steps(*seconds), 1.0)
    assert [len(chunk.steps) for chunk in chunks] == sizes
    assert [step.index for chunk in chunks for step in chunk.steps] == list(range(len(seconds)))


def test_estimates_add_traffic_and_arithmetic() -> None:
    plan = make_plan(nbytes=int(1e9), flops=int(2e9))
    assert estimate(plan.passes[1], 10**12, PACE) == pytest.approx(3.0)


def test_an_undeclared_pass_is_taken_to_touch_its_buffers_once() -> None:
    assert estimate(make_plan().passes[0], int(5e8), PACE) == pytest.approx(0.5)


def test_a_long_dispatch_is_split_and_only_its_first_piece_waits() -> None:
    first, second = make_plan().passes
    made = arrange([(first, SCALAR, 0.2), (second, SCALAR, 3.5)], PACE)
    flat = [step for chunk in made.chunks for step in chunk.steps]
    assert [step.index for step in flat] == [0, 1, 1, 1, 1]
    assert [bool(step.hazards) for step in flat] == [False, True, False, False, False]
    assert all(chunk.seconds <= PACE.budget + 1e-9 for chunk in made.chunks)
    assert sum(step.groups[0] for step in flat[1:]) == SCALAR.groups[0]
    assert made.seconds == pytest.approx(3.7)
    assert made.active == (0, 1)


def test_a_proven_speed_joins_the_pieces_again() -> None:
    first, second = make_plan().passes
    slow = arrange([(first, SCALAR, 0.2), (second, SCALAR, 3.5)], PACE)
    speed = proven_speed(slow, 0.05)
    assert speed == pytest.approx(3.7 / (MARGIN * 0.05))
    fast = arrange([(first, SCALAR, 0.2), (second, SCALAR, 3.5)], PACE, speed=speed)
    assert len(fast.chunks) == 1
    assert [step.groups for step in fast.chunks[0].steps] == [SCALAR.groups] * 2


def test_a_slow_device_is_never_cut_more_coarsely() -> None:
    assert proven_speed(DispatchSequence((0,), (Chunk(tuple(steps(0.5))),)), 100.0) == 1.0


@pytest.mark.parametrize(("seconds", "pieces"), [(0.0, 1), (0.9, 1), (1.0, 1), (1.1, 2), (7.5, 8)])
def test_pieces_of(seconds: float, pieces: int) -> None:
    assert pieces_of(seconds, PACE) == pieces


@pytest.mark.parametrize(("repeat", "expected"), [(1, [2]), (2, [4]), (3, [4, 2]), (5, [4, 4, 2])])
def test_repeats_share_submits_within_the_budget(repeat: int, expected: list[int]) -> None:
    made = DispatchSequence((0, 1), tuple(Chunk((step,)) for step in steps(0.25, 0.25)))
    packed = batches(made, repeat, 1.0)
    assert [len(batch) for batch in packed] == expected
    assert list(itertools.chain(*packed)) == [0, 1] * repeat


def test_a_chunk_beyond_the_budget_goes_alone() -> None:
    made = DispatchSequence((0,), (Chunk(tuple(steps(1.5))),))
    assert batches(made, 3, 1.0) == ((0,), (0,), (0,))


def test_every_kind_of_device_has_a_pace() -> None:
    assert set(PACES) == {"discrete", "integrated", "virtual", "cpu", "other"}
    assert all(pace.budget <= 0.5 for kind, pace in PACES.items() if kind != "cpu")
