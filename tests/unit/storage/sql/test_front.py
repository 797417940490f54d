"""The front of a queue: claims that read nothing, and what the database refuses to write for them.

PostgreSQL alone claims in a single statement. The other server changes what this one remembers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.model.delivery import Ack, Release
from penstock.model.message import NewMessage
from penstock.storage.contract import Engine
from penstock.storage.sql.core import Core, Timers
from penstock.storage.sql.deliveries import Row
from penstock.storage.sql.front import LAST, Front, Fronts
from penstock.storage.sql.postgresql.adapter import PostgreSQL
from penstock.storage.sql.postgresql.session import PostgreSQLSession
from penstock.testing.laws import law
from tests.unit.storage.sql.pairs import (
    TENANT,
    Pair,
    claim,
    opened_pair,
    payloads,
    publish,
    settled,
)

FIVE = [b"1", b"2", b"3", b"4", b"5"]


@pytest.fixture(params=[False, True], ids=["alone", "in company"])
async def pair(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Pair]:
    """Two servers that have nothing to wait for; each believes that it is alone, or that not."""
    monkeypatch.setattr(Timers, "is_due", lambda *_: False)
    monkeypatch.setattr(PostgreSQL, "has_company", request.param)
    async with opened_pair("postgresql") as found:
        (held,) = await claim(found.a, "old")
        await settled(found.a, "old", Ack(held.receipt))
        yield found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of groups that claims asked the database for."""
    found: list[int] = []
    first_groups = PostgreSQLSession.first_groups

    async def look(self: Any, *asked: Any) -> Any:
        found.append(asked[-1])
        return await first_groups(self, *asked)

    monkeypatch.setattr(PostgreSQLSession, "first_groups", look)
    return found


def core(engine: Engine) -> Core:
    found = engine._core  # type: ignore[attr-defined]
    assert isinstance(found, Core)
    return found


async def one_by_one(engine: Engine, count: int) -> list[bytes]:
    """The payloads of so many claims of one delivery."""
    return [payload for _ in range(count) for payload in payloads(await claim(engine, "old", 1))]


@law("C4")
async def test_what_this_server_did_is_not_read_again(pair: Pair, reads: list[int]) -> None:
    await publish(pair.a, "old", *FIVE[:3])
    assert await one_by_one(pair.a, 1) == FIVE[:1]
    reads.clear()
    for payload in FIVE[3:]:
        await publish(pair.a, "old", payload)
    assert await one_by_one(pair.a, 4) == FIVE[1:]
    assert reads == []
    assert core(pair.a).repeated["conflict"] == 0
    assert await claim(pair.a, "old") == []
    assert len(reads) == 1
    assert (await pair.b.stats(TENANT, "old")).in_flight == 5


@law("C4")
async def test_what_comes_back_is_handed_out_in_its_place(pair: Pair, reads: list[int]) -> None:
    await publish(pair.a, "old", *FIVE)
    held = await claim(pair.a, "old", 4)
    reads.clear()
    back = [Release(held[2].receipt), Release(held[0].receipt)]
    assert await settled(pair.a, "old", Ack(held[1].receipt), *back) == ["ok"] * 3
    assert await one_by_one(pair.a, 3) == [b"1", b"3", b"5"]
    assert reads == []


@law("C4")
@pytest.mark.parametrize("priority", [4, 9])
async def test_a_message_of_another_server_that_comes_first_is_first(
    pair: Pair, priority: int
) -> None:
    await publish(pair.a, "old", *FIVE)
    assert await one_by_one(pair.a, 1) == [b"1"]
    await pair.b.publish(TENANT, "old", [NewMessage(b"first", priority=priority)])
    expected = [b"first", b"2"] if priority == 9 else [b"2", b"3"]
    assert await one_by_one(pair.a, 2) == expected


@law("C1")
async def test_what_another_server_claimed_is_not_handed_out_again(pair: Pair) -> None:
    await publish(pair.a, "old", *FIVE)
    assert await one_by_one(pair.a, 1) == [b"1"]
    theirs = await claim(pair.b, "old", 2)
    assert payloads(theirs) == [b"2", b"3"]
    ours = await claim(pair.a, "old", 10)
    assert payloads(ours) == [b"4", b"5"]
    assert {one.attempts for one in (*theirs, *ours)} == {1}


@law("C5")
async def test_a_claim_finds_what_another_server_appended(pair: Pair) -> None:
    await publish(pair.a, "old", *FIVE[:2])
    assert await one_by_one(pair.a, 1) == [b"1"]
    await publish(pair.b, "old", *FIVE[2:])
    assert payloads(await claim(pair.a, "old", 10)) == FIVE[1:]


@law("C4")
async def test_a_pause_by_another_server_holds(pair: Pair) -> None:
    await publish(pair.a, "old", *FIVE)
    assert await one_by_one(pair.a, 1) == [b"1"]
    await pair.b.pause(TENANT, "old", True)
    assert await claim(pair.a, "old") == []
    await pair.b.pause(TENANT, "old", False)
    assert await one_by_one(pair.a, 1) == [b"2"]


# -- without a database ------------------------------------------------------------------


def row(phase: int, rank: int, row_key: int, size: int = 1) -> Row:
    return Row(7, phase, rank, row_key, 0, size, None, None, None, b"", b"")


def test_groups_are_in_claim_order_up_to_the_end() -> None:
    front = Front([row(0, 5, 30), row(1, 5, 20), row(0, 5, 50), row(1, 0, 90)], (5, 40))
    first, bound = front.first(2)
    assert [(one[2], one[3]) for one in first] == [(0, 90), (5, 20)]
    assert bound == (5, 29)
    everything, bound = front.first(9)
    assert len(everything) == 3
    assert bound == (5, 40)
    assert [front.count_through(at) for at in ((0, 89), (0, 90), (5, 20), LAST)] == [0, 1, 2, 3]


def test_a_front_serves_what_it_has() -> None:
    known, cut = Front([row(0, 5, 1, 10)], None), Front([row(0, 5, 1, 10)], (5, 1))
    assert known.serves(groups=3, deliveries=10)
    assert not known.serves(groups=1, deliveries=11)
    assert cut.serves(groups=1, deliveries=1)
    assert not cut.serves(groups=2, deliveries=1)
    assert not Front([], None).serves(groups=1, deliveries=1)


def test_a_front_follows_the_commits_of_its_server() -> None:
    fronts = Fronts()
    front = fronts.read((7, False), [row(0, 5, 10), row(0, 5, 20)], (5, 20))
    fronts.wrote([(7, 0, 5, 10), (7, 3, 5, 10)], [row(0, 5, 11), row(0, 5, 21), row(3, 5, 12)])
    assert [one[3] for one in front.first(9)[0]] == [11, 20]
    fronts.wrote([], [row(11, 5, 15)])
    assert front.size == 2
    fronts.drop(7)
    assert fronts.find((7, False)) is None


def test_a_front_is_bounded() -> None:
    fronts = Fronts()
    front = fronts.read((7, False), [], None)
    fronts.wrote([], [row(0, 5, number) for number in range(1000)])
    assert front.size == 256
    assert front.first(999)[1] == (5, 255)
    assert fronts.read((8, False), [row(0, 5, n) for n in range(300)], None).size == 300
    assert fronts.find((8, False)) is None
    for queue in range(1000):
        fronts.read((queue, True), [], None)
    assert fronts.find((7, False)) is None
