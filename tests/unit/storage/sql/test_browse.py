"""Peek and purge over runs that were split many times, and beside other servers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from penstock.errors import BadInput
from penstock.filters import parse
from penstock.model.limits import MAX_OFFSET
from penstock.model.message import MessageId
from penstock.model.states import State
from penstock.storage.sql import browse, group_cursor
from penstock.storage.sql.group_cursor import Item
from penstock.testing.conformance.harness import TENANT, Store, ids_of, msg
from penstock.testing.laws import law
from tests.unit.storage.sql.ordered import Pair, opened_pair

#: What the broker lets through.
CURSOR = re.compile(r"[0-9a-f]{1,15}")


@pytest.fixture(params=["postgresql", "mysql"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with opened_pair(request.param) as pair:
        yield pair


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few runs a statement, few deliveries a batch."""
    monkeypatch.setattr(group_cursor, "_FIRST_GROUPS", 2)
    monkeypatch.setattr(group_cursor, "_MAX_GROUPS", 3)
    monkeypatch.setattr(browse, "_BATCH", 4)
    monkeypatch.setattr(browse, "_PAYLOADS", 2)


async def _scatter(one: Store) -> list[MessageId]:
    """Thirty messages of three priorities, half of them returned from claims, run by run."""
    for batch in range(3):
        await one.publish(*(msg(b"%d" % n, priority=3 + n % 3, n=n) for n in range(10)))
        claimed = await one.claim(limit=9 - batch)
        for delivery in claimed[::2]:
            await one.nack(delivery, str(delivery.message.id), 0)
        for delivery in claimed[1::2]:
            await one.release(delivery)
    log = await one.log()
    return [m.id for m in sorted(log, key=lambda m: (-m.priority, m.id))]


def _before_hold(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Do something between the moment a purge selects and the moment it locks, once."""
    held = group_cursor.hold
    todo = [act]

    async def hold(*arguments: Any) -> Any:
        while todo:
            await todo.pop()()
        return await held(*arguments)

    monkeypatch.setattr(browse, "hold", hold)


@law("C4")
@pytest.mark.parametrize("page", [1, 2, 7])
async def test_pages_over_runs_that_interleave(pair: Pair, small_pages: None, page: int) -> None:
    await pair.first.queue(max_attempts=99)
    ids = await _scatter(pair.first)
    assert len(ids) == 30
    shown = await pair.second.browse("q", State.AVAILABLE, page=page, payloads=True)
    assert [s.message.id for s in shown] == ids
    assert [s.payload for s in shown] == [str(s.message.headers["n"]).encode() for s in shown]


@law("C4")
@pytest.mark.parametrize("page", [1, 4])
async def test_pages_of_what_is_in_flight(pair: Pair, small_pages: None, page: int) -> None:
    """There runs are sorted by their claims."""
    await pair.first.queue(max_attempts=99)
    await _scatter(pair.first)
    held = [d for n in (5, 1, 9, 3) for d in await pair.first.claim(limit=n)]
    expected = [d.message.id for d in sorted(held, key=_place)]
    assert [s.message.id for s in await pair.second.browse("q", State.IN_FLIGHT, page=page)] == (
        expected
    )


def _place(delivery: Any) -> tuple[int, int]:
    return -delivery.message.priority, delivery.message.id


async def test_a_scan_is_bounded_and_goes_on(
    pair: Pair, small_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browse, "MAX_SCAN", 5)
    await pair.first.queue(max_attempts=99)
    await _scatter(pair.first)
    pages: list[Sequence[int]] = []
    cursor: str | None = None
    while not pages or cursor is not None:
        page = await pair.first.engine.peek(TENANT, "q", State.AVAILABLE, parse("n = 0"), 9, cursor)
        pages.append([s.message.id for s in page.items])
        cursor = page.cursor
        assert cursor is None or CURSOR.fullmatch(cursor)
    assert len(pages) == 6
    assert [] in pages
    assert sum(map(len, pages)) == 3


async def test_cursors_are_what_a_page_gave(pair: Pair) -> None:
    await pair.first.queue()
    await pair.first.publish(*[msg(priority=0)] * 3)
    engine = pair.first.engine
    page = await engine.peek(TENANT, "q", State.AVAILABLE, None, 1)
    assert page.cursor is not None
    assert CURSOR.fullmatch(page.cursor)
    assert CURSOR.fullmatch(browse._make_cursor((9, MAX_OFFSET)))
    # None of these is in the queue, but something may come after them.
    for cursor in ("0", "1", f"{MAX_OFFSET:x}"):
        reply = await engine.peek(TENANT, "q", State.AVAILABLE, None, 9, cursor)
        assert len(reply.items) == 3
    for cursor in ("f" * 15, f"{10 * (MAX_OFFSET + 1):x}", "-1", "x", ""):
        with pytest.raises(BadInput):
            await engine.peek(TENANT, "q", State.AVAILABLE, None, 9, cursor)


@law("S3")
async def test_purge_finds_again_what_a_claim_has_split(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3: what another server claims meanwhile is its, and the rest of the run is purged."""
    await pair.first.queue()
    ids = await pair.first.publish(*[b"x"] * 10)
    claimed: list[MessageId] = []

    async def claim() -> None:
        claimed.extend(ids_of(await pair.second.claim(limit=3)))

    _before_hold(monkeypatch, claim)
    reply = await pair.first.engine.purge(TENANT, "q", State.AVAILABLE, None, 99)
    assert claimed == ids[:3]
    assert (reply.count, reply.more) == (7, False)
    assert await pair.first.ids("q", State.AVAILABLE) == []
    assert await pair.first.ids("q", State.IN_FLIGHT) == ids[:3]


async def test_purge_goes_on_to_its_limit_when_it_lost_some(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.first.queue()
    ids = await pair.first.publish(*[b"x"] * 10)
    _before_hold(monkeypatch, lambda: pair.second.claim(limit=3))
    reply = await pair.first.engine.purge(TENANT, "q", State.AVAILABLE, None, 5)
    assert (reply.count, reply.more) == (5, True)
    assert await pair.first.ids("q", State.AVAILABLE) == ids[8:]


async def test_purge_finds_what_was_claimed_and_released(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is available before and after, though not in the same place."""
    await pair.first.queue()
    await pair.first.publish(*[b"x"] * 6)

    async def claim_and_release() -> None:
        for delivery in await pair.second.claim(limit=4):
            await pair.second.release(delivery)

    _before_hold(monkeypatch, claim_and_release)
    reply = await pair.first.engine.purge(TENANT, "q", State.AVAILABLE, None, 99)
    assert (reply.count, reply.more) == (6, False)


async def test_purge_spares_what_was_replaced_by_something_else(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.first.queue()
    (kept, _) = await pair.first.publish(msg(key="k", color="red"), msg(color="red"))
    _before_hold(monkeypatch, lambda: pair.second.publish(msg(key="k", color="blue")))
    reply = await pair.first.engine.purge(TENANT, "q", State.AVAILABLE, parse("color = 'red'"), 9)
    assert (reply.count, reply.more) == (1, False)
    assert await pair.first.ids("q", State.AVAILABLE) == [kept]


async def test_purge_in_small_parts_is_still_one_commit(
    pair: Pair, small_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.first.queue(max_attempts=99)
    ids = await _scatter(pair.first)
    before = await pair.first.picture("q")
    held = group_cursor.hold
    parts = 0

    async def hold(work: Any, items: Sequence[Item], phases: Any) -> Any:
        nonlocal parts
        parts += 1
        if parts == 4:
            raise BadInput("stop here", field="limit")
        return await held(work, items, phases)

    with monkeypatch.context() as patched:
        patched.setattr(browse, "hold", hold)
        with pytest.raises(BadInput):
            await pair.first.engine.purge(TENANT, "q", State.AVAILABLE, None, 99)
    assert parts == 4
    assert await pair.first.picture("q") == before
    reply = await pair.first.engine.purge(TENANT, "q", State.AVAILABLE, parse("n > 2"), 13)
    assert (reply.count, reply.more) == (13, True)
    left = await pair.first.browse("q", State.AVAILABLE)
    numbers = {m.id: m.headers["n"] for m in await pair.first.log()}
    chosen = [i for i in ids if numbers[i] > 2]  # type: ignore[operator]
    assert [s.message.id for s in left] == [i for i in ids if i not in chosen[:13]]


@law("S3")
async def test_purges_and_claims_of_two_servers_share_out(pair: Pair) -> None:
    """Every message is claimed or purged, none both, none neither."""
    await pair.first.queue()
    ids: list[MessageId] = []
    for _ in range(20):
        ids += await pair.first.publish(*[b"x"] * 10)
    claimed: list[MessageId] = []
    purged = 0

    async def claim(one: Store) -> None:
        while taken := await one.claim(limit=7):
            claimed.extend(ids_of(taken))

    async def purge(one: Store) -> None:
        nonlocal purged
        more = True
        while more:
            reply = await one.engine.purge(TENANT, "q", State.AVAILABLE, None, 11)
            purged += reply.count
            more = reply.more

    await asyncio.gather(
        claim(pair.first), claim(pair.second), purge(pair.first), purge(pair.second)
    )
    assert len(claimed) == len(set(claimed))
    assert len(claimed) + purged == len(ids)
