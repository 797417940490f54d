"""Walking over runs that interleave: every delivery once and in order, whatever the pages."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.storage.sql import group_cursor
from penstock.storage.sql.database import Row, Session
from penstock.storage.sql.deliveries import DeliveryGroup, DeliveryRecord, Phase, message_id
from penstock.storage.sql.group_cursor import (
    GroupCursor,
    Position,
    in_claim_order,
    in_publish_order,
)
from penstock.testing.laws import law

QUEUE = 7
AVAILABLE = (Phase.FRESH, Phase.RETURNED)
SEGMENTS = 3
ENTRIES = 24


class Table:
    """Answers ``list_runs`` as a database does."""

    def __init__(self, runs: list[DeliveryGroup]) -> None:
        self.rows = sorted(run.row() for run in runs)
        self.statements = 0

    async def fetch(self, statement: str, **asked: int) -> list[Row]:
        assert statement == "list_groups"
        self.statements += 1
        found = [
            row
            for row in self.rows
            if (row.queue, row.phase) == (asked["queue"], asked["phase"])
            and (row.rank, row.row_key) > (asked["rank"], asked["row_key"])
            and row.rank <= asked["last_rank"]
        ]
        return list(found[: asked["most"]])


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of two or three runs."""
    monkeypatch.setattr(group_cursor, "_FIRST_GROUPS", 2)
    monkeypatch.setattr(group_cursor, "_MAX_GROUPS", 3)
    monkeypatch.setattr(group_cursor, "_PAGE", 5)


@st.composite
def _scattered(draw: st.DrawFn) -> list[DeliveryGroup]:
    """Messages of some segments, most of them of one rank, in runs of three lives."""
    places = st.tuples(
        st.sampled_from([*AVAILABLE, Phase.IN_FLIGHT, Phase.DONE]),
        st.sampled_from([0, 4, 4, 4, 4, 4, 4, 9]),
        st.integers(0, 2),
    )
    members: dict[tuple[Phase, int, int, int], list[int]] = {}
    for segment in range(1, SEGMENTS + 1):
        chosen = draw(st.lists(places, min_size=ENTRIES, max_size=ENTRIES))
        for index, (phase, rank, attempts) in enumerate(chosen):
            members.setdefault((phase, rank, segment, attempts), []).append(index)
    return [
        DeliveryGroup(
            QUEUE,
            phase,
            rank,
            segment,
            indices,
            DeliveryRecord(0, attempts=attempts, row_key=1000 - row_key),
        )
        for row_key, ((phase, rank, segment, attempts), indices) in enumerate(members.items())
    ]


def _positions(runs: list[DeliveryGroup], phases: tuple[Phase, ...]) -> list[Position]:
    chosen = [run for run in runs if run.phase in phases]
    return sorted((run.rank, message) for run in chosen for message in run.ids())


async def _all(walk: GroupCursor, most: int) -> list[Position]:
    found: list[Position] = []
    while taken := await walk.take(most):
        assert len(taken) <= most
        found += [(item.rank, item.message_id) for item in taken]
        for item in taken:
            assert item.message_id in item.group.ids()
    assert await walk.take(most) == []
    return found


def _session(runs: list[DeliveryGroup]) -> Session:
    return cast("Session", Table(runs))


@law("C4")
@given(
    _scattered(),
    st.sampled_from([AVAILABLE, (Phase.DONE,), (Phase.IN_FLIGHT,)]),
    st.integers(1, 7),
)
@settings(max_examples=100, deadline=None)
async def test_claim_order(runs: list[DeliveryGroup], phases: tuple[Phase, ...], most: int) -> None:
    walk = in_claim_order(_session(runs), QUEUE, phases)
    assert await _all(walk, most) == _positions(runs, phases)


@law("C4")
@given(
    _scattered(),
    st.sampled_from([AVAILABLE, (Phase.DONE,), (Phase.IN_FLIGHT,)]),
    st.sampled_from([0, 3, 4, 9]),
    st.integers(0, SEGMENTS + 1),
    st.integers(0, ENTRIES),
)
@settings(max_examples=100, deadline=None)
async def test_from_any_position_on(
    runs: list[DeliveryGroup], phases: tuple[Phase, ...], rank: int, segment: int, index: int
) -> None:
    """A run that begins before the position may have members behind it."""
    after = (rank, message_id(segment, index))
    walk = in_claim_order(_session(runs), QUEUE, phases, after)
    assert await _all(walk, 3) == [p for p in _positions(runs, phases) if p > after]


@given(_scattered(), st.integers(1, 7))
@settings(max_examples=100, deadline=None)
async def test_publish_order_whatever_the_rank(runs: list[DeliveryGroup], most: int) -> None:
    walk = in_publish_order(_session(runs), QUEUE, Phase.DONE)
    found = [message for _, message in await _all(walk, most)]
    assert found == sorted(message for _, message in _positions(runs, (Phase.DONE,)))


async def test_one_that_is_in_two_phases_is_shown_once() -> None:
    """It was claimed and came back between two pages."""
    both = [DeliveryGroup(QUEUE, phase, 4, 1, [0, 1, 2], DeliveryRecord(0)) for phase in AVAILABLE]
    walk = in_claim_order(_session(both), QUEUE, AVAILABLE)
    assert await _all(walk, 2) == [(4, message_id(1, index)) for index in range(3)]


async def test_what_is_split_while_it_is_walked_through_is_met_once() -> None:
    """A run whose first members have gone is met again, at a new place, when it is known."""
    table = Table([DeliveryGroup(QUEUE, Phase.DONE, 4, 1, [0, 5], DeliveryRecord(0, attempts=1))])
    table.rows += [
        DeliveryGroup(QUEUE, Phase.DONE, 4, 1, [index], DeliveryRecord(0, attempts=2)).row()
        for index in (1, 2, 3)
    ]
    walk = in_publish_order(cast("Session", table), QUEUE, Phase.DONE)
    assert [item.message_id & 7 for item in await walk.take(1)] == [0]
    table.rows[0] = DeliveryGroup(QUEUE, Phase.DONE, 4, 1, [5], DeliveryRecord(0, attempts=1)).row()
    table.rows.sort()
    assert [item.message_id & 7 for item in await walk.take(9)] == [1, 2, 3, 5]


async def test_a_page_is_as_large_as_it_has_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one delivery are read in many, runs of many in few."""
    monkeypatch.setattr(group_cursor, "_FIRST_GROUPS", 2)
    monkeypatch.setattr(group_cursor, "_MAX_GROUPS", 50)
    monkeypatch.setattr(group_cursor, "_PAGE", 50)
    single = Table(
        [DeliveryGroup(QUEUE, Phase.DONE, 4, n, [0], DeliveryRecord(0)) for n in range(100)]
    )
    assert len(await _all(in_claim_order(cast("Session", single), QUEUE, [Phase.DONE]), 9)) == 100
    assert single.statements <= 4
    large = Table(
        [DeliveryGroup(QUEUE, Phase.DONE, 4, n, range(50), DeliveryRecord(0)) for n in range(100)]
    )
    assert len(await in_claim_order(cast("Session", large), QUEUE, [Phase.DONE]).take(60)) == 60
    assert large.statements == 2
