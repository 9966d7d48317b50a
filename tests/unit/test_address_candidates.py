"""How long allocations look leaked, and the limit of releases: both with a second implementation over the whole history."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.admin.release_record import HOUR, LEAST, MASS, MOST, Record, Stop, limit
from svc.controllers.node.addresses.candidates import Candidates
from svc.controllers.node.addresses.held import Held
from svc.controllers.node.addresses.setbacks import Seen, Setbacks
from svc.datastore.api import Position

HELD = Held("10.0.0.1", "pods.c1", 7, "pod", "node1", "default/web", "t")
OTHER = HELD._replace(address="10.0.0.2")
GRACE = 10.0


def observed(*looks: tuple[float, list[Held]]) -> Candidates:
    found = Candidates()
    for now, suspects in looks:
        found.observe(now, {held.address: held for held in suspects})
    return found


def test_candidate_is_confirmed_after_the_grace_period() -> None:
    found = observed((0.0, [HELD]), (9.9, [HELD]))
    assert found.confirmed(9.9, GRACE) == {}
    assert found.confirmed(10.0, GRACE) == {"pods.c1": [HELD]}


def test_grace_period_of_zero_never_ends() -> None:
    assert observed((0.0, [HELD])).confirmed(1e9, 0.0) == {}


@pytest.mark.parametrize("grace", [0.0, GRACE])
def test_address_of_a_node_that_is_gone_is_confirmed_at_once(grace: float) -> None:
    found = observed((0.0, [HELD]))
    assert found.confirmed(0.0, grace, gone=("node1",)) == {"pods.c1": [HELD]}
    assert found.confirmed(0.0, grace, gone=("node2",)) == {}


def test_valid_look_in_between_begins_the_time_anew() -> None:
    assert observed((0.0, [HELD]), (5.0, []), (6.0, [HELD])).confirmed(12.0, GRACE) == {}


@pytest.mark.parametrize("new", [HELD._replace(sequence=8), HELD._replace(handle="pods.c2")])
def test_other_allocation_of_the_address_begins_the_time_anew(new: Held) -> None:
    found = observed((0.0, [HELD]), (9.0, [new]))
    assert found.confirmed(12.0, GRACE) == {}
    assert found.confirmed(19.0, GRACE) == {new.handle: [new]}


def test_handle_is_confirmed_with_all_of_its_candidates() -> None:
    found = observed((0.0, [HELD]), (5.0, [HELD, OTHER]))
    assert found.confirmed(12.0, GRACE) == {}
    assert found.confirmed(15.0, GRACE) == {"pods.c1": [HELD, OTHER]}


def test_forgotten_candidate_begins_anew() -> None:
    found = observed((0.0, [HELD]))
    found.forget(["10.0.0.1", "10.0.0.9"])
    assert len(found) == 0
    found.observe(11.0, {HELD.address: HELD})
    assert found.confirmed(12.0, GRACE) == {}


def test_changed_grace_period_applies_at_once() -> None:
    found = observed((0.0, [HELD]))
    assert (found.confirmed(5.0, 10.0), found.confirmed(5.0, 4.0)) == ({}, {"pods.c1": [HELD]})
    assert (found.next_due(5.0, 10.0), found.next_due(5.0, 4.0), found.next_due(5.0, 0.0)) == (10.0, None, None)


LOOKS = st.lists(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([1, 2])), unique_by=lambda each: each[0]), max_size=8
)


@given(LOOKS, st.integers(0, 4))
def test_time_is_that_of_the_unbroken_run(looks: list[list[tuple[str, int]]], grace: int) -> None:
    found = Candidates()
    for now, suspects in enumerate(looks):
        found.observe(now, {name: HELD._replace(address=name, handle=name, sequence=number) for name, number in suspects})
    now = len(looks)
    expected = set()
    for suspect in looks[-1] if looks else []:
        run = 0
        while run < len(looks) and suspect in looks[-1 - run]:
            run += 1
        if grace and now - (len(looks) - run) >= grace:
            expected.add(suspect[0])
    assert set(found.confirmed(now, grace)) == expected


# the limit


@pytest.mark.parametrize(
    ("total", "expected"), [(0, LEAST), (49, 10), (50, 10), (60, 12), (499, 99), (500, 100), (501, MOST), (30_000, MOST)]
)
def test_limit_is_100_or_a_fifth_but_at_least_10(total: int, expected: int) -> None:
    assert limit(total) == expected


def test_releases_count_for_an_hour() -> None:
    record = Record().reserved(1000.0, 60)
    assert record.left(1000.0, 30_000) == 40
    assert record.left(1000.0 + HOUR - 61, 30_000) == 40
    assert record.left(1000.0 + HOUR + 60, 30_000) == 100


def test_record_of_another_leader_with_a_fast_clock_counts() -> None:
    assert Record().reserved(9000.0, 60).left(1000.0, 30_000) == 40


def test_acknowledgement_allows_what_the_stop_named_once() -> None:
    record = Record().reserved(1000.0, 90).stopped(Stop("id", MASS, "m", 500))
    assert record.acknowledged("other", 1000.0) == record
    later = record.acknowledged("id", 1000.0)
    assert (later.stop, later.left(1000.0, 30_000)) == (None, 510)
    used = later.reserved(1000.0, 500)
    assert used.left(1000.0, 30_000) == 10
    assert used.acknowledged("id", 1000.0) == used
    assert later.left(1000.0 + HOUR + 60, 30_000) == 100


def test_record_survives_its_text() -> None:
    record = Record().reserved(1000.0, 5).stopped(Stop("id", MASS, "m", 3))
    assert Record.from_text(record.to_text()) == record
    assert Record.from_text("") == Record()
    acknowledged = record.acknowledged("id", 1000.0)
    assert Record.from_text(acknowledged.to_text()) == acknowledged


@pytest.mark.parametrize("text", ["[]", "x", '{"released": 5}', '{"released": {"a": 1}}', '{"stop": {}}', '{"allowed": "x"}'])
def test_damaged_record_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Record.from_text(text)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 60)), max_size=30), st.integers(0, 1000))
def test_no_hour_has_more_releases_than_the_limit(steps: list[tuple[int, int]], total: int) -> None:
    record, now, made = Record(), 10_000.0, list[tuple[float, int]]()
    for minutes, wanted in steps:
        now += 6.0 * minutes
        if wanted <= record.left(now, total):
            record = Record.from_text(record.reserved(now, wanted).to_text())
            made.append((now, wanted))
    for end, _ in made:
        assert sum(count for time, count in made if end - HOUR < time <= end) <= limit(total)


# setbacks


def test_setback_counts_for_an_hour_until_it_is_settled() -> None:
    seen = [Seen(Position("a", 5), (0, 0))]
    found = Setbacks(lambda: seen[-1])
    found.observe(0.0)
    assert not found.was_recent(0.0)
    seen.append(Seen(Position("a", 3, 1), (0, 0)))
    found.observe(1.0)
    found.observe(2.0)
    assert found.was_recent(HOUR)
    assert not found.was_recent(HOUR + 1)
    found.settle()
    assert not found.was_recent(2.0)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (Seen(Position("", 0)), Seen(Position("a", 9)), False),
        (Seen(Position("a", 9)), Seen(Position("a", 10)), False),
        (Seen(Position("a", 9)), Seen(Position("b", 10)), True),
        (Seen(Position(), (0, 0)), Seen(Position(), (0, 1)), True),
    ],
)
def test_what_is_a_setback(before: Seen, after: Seen, *, expected: bool) -> None:
    assert after.is_behind(before) == expected
