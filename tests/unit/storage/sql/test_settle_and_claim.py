"""Acks and the next claim in one statement, and in two transactions where that is not possible."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.model.delivery import Ack, Delivery, Release, Settlement
from penstock.storage.contract import Engine
from penstock.storage.sql.core import Core, Timers
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


@pytest.fixture
async def pair(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    """Two servers that have nothing to wait for, and five messages."""
    monkeypatch.setattr(Timers, "is_due", lambda *_: False)
    async with opened_pair("postgresql") as found:
        await publish(found.a, "old", b"1", b"2", b"3", b"4")
        yield found


async def both(
    engine: Engine, held: list[Delivery], limit: int, kind: type[Ack | Release] = Ack
) -> tuple[list[str], list[Delivery]]:
    items: list[Settlement] = [kind(one.receipt) for one in held]
    reply, next_ones = await engine.settle_and_claim(TENANT, "old", items, "c", limit, 60_000)
    return [str(outcome.verdict) for outcome in reply.outcomes], next_ones


def commits(engine: Engine) -> int:
    core: Any = engine
    assert isinstance(core._core, Core)
    return core._core.commits


@law("S1")
async def test_acks_and_a_claim_are_one_commit(pair: Pair) -> None:
    held = await claim(pair.a, "old", 2)
    before = commits(pair.a)
    verdicts, next_ones = await both(pair.a, held, 2)
    assert commits(pair.a) == before + 1
    assert verdicts == ["ok", "ok"]
    assert payloads(next_ones) == [b"2", b"3"]
    verdicts, last = await both(pair.a, next_ones, 2)
    assert (verdicts, payloads(last)) == (["ok", "ok"], [b"4"])
    assert await both(pair.a, last, 2) == (["ok"], [])
    stats = await pair.b.stats(TENANT, "old")
    assert (stats.available, stats.in_flight, stats.done, stats.acks) == (0, 0, 5, 5)


@law("C4")
async def test_what_is_released_is_claimed_again(pair: Pair) -> None:
    held = await claim(pair.a, "old", 2)
    verdicts, next_ones = await both(pair.a, held, 3, Release)
    assert verdicts == ["ok", "ok"]
    assert payloads(next_ones) == [b"0", b"1", b"2"]


@law("S1")
async def test_a_stale_ack_ends_nothing_and_the_claim_is_made(pair: Pair) -> None:
    held = await claim(pair.a, "old", 2)
    await settled(pair.b, "old", Release(held[0].receipt))
    verdicts, next_ones = await both(pair.a, held, 10)
    assert verdicts == ["stale", "ok"]
    assert payloads(next_ones) == [b"0", b"2", b"3", b"4"]


@law("C1")
async def test_what_another_server_claimed_meanwhile(pair: Pair) -> None:
    held = await claim(pair.a, "old", 1)
    theirs = await claim(pair.b, "old", 2)
    verdicts, next_ones = await both(pair.a, held, 10)
    assert verdicts == ["ok"]
    assert payloads(theirs) + payloads(next_ones) == [b"1", b"2", b"3", b"4"]
    # Acks of deliveries that the other server claimed are not in this server's memory.
    verdicts, none = await both(pair.a, [*theirs, *next_ones], 10)
    assert (verdicts, none) == (["ok"] * 4, [])


async def test_a_paused_queue_takes_acks(pair: Pair) -> None:
    held = await claim(pair.a, "old", 2)
    await pair.b.pause(TENANT, "old", True)
    assert await both(pair.a, held, 10) == (["ok", "ok"], [])
    assert (await pair.b.stats(TENANT, "old")).done == 2
