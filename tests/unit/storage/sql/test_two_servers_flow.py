"""Two servers on one database at the same time: P3, P4, C1, C2, S1, Q2, on both dialects."""

from __future__ import annotations

import asyncio
from collections import Counter

from penstock.model.delivery import Ack, Nack, Receipt, Reject, Release, ReplaySource
from penstock.model.message import NewMessage, Offset
from penstock.model.states import State
from penstock.storage.contract import Engine
from penstock.storage.sql.deliveries import segment_of
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.databases import server
from tests.unit.storage.sql.callers import caller
from tests.unit.storage.sql.pairs import (
    NAME,
    ROUNDS,
    TENANT,
    Pair,
    claim,
    opened,
    opened_again,
    payloads,
    publish,
    settled,
)

# -- publishing (P4) ---------------------------------------------------------------------


@law("P4")
async def test_one_id_through_two_servers_is_one_entry(pair: Pair) -> None:
    for number in range(ROUNDS):
        message = [NewMessage(b"x", id=f"id-{number}"), NewMessage(b"y", id=f"jd-{number}")]
        turned = message[::-1]
        replies = await asyncio.gather(
            *(
                one.publish(TENANT, "old", batch)
                for one in (pair.a, pair.b)
                for batch in (message, turned)
            )
        )
        for position, other in ((0, 1), (1, 0)):
            same = [replies[n].messages[position] for n in (0, 2)]
            same += [replies[n].messages[other] for n in (1, 3)]
            assert len({item.id for item in same}) == 1
            assert sum(not item.duplicate for item in same) == 1
    page = await pair.b.read_log(TENANT, Offset(0), 1_000)
    assert len(page.entries) == 1 + 2 * ROUNDS


@law("P4")
async def test_one_batch_through_two_servers_is_stored_once(pair: Pair) -> None:
    for number in range(ROUNDS):
        batch = [NewMessage(b"x"), NewMessage(b"y")]
        replies = await asyncio.gather(
            *(
                one.publish(TENANT, "old", batch, batch_id=f"batch-{number}")
                for one in (pair.a, pair.b, pair.a, pair.b)
            )
        )
        assert len({tuple(item.id for item in reply.messages) for reply in replies}) == 1
        assert sum(not reply.repeated for reply in replies) == 1
    page = await pair.b.read_log(TENANT, Offset(0), 1_000)
    assert len(page.entries) == 1 + 2 * ROUNDS


async def test_one_key_through_two_servers_is_one_message(pair: Pair) -> None:
    for number in range(ROUNDS):
        sent = [b"%d" % n for n in range(4)]
        replies = await asyncio.gather(
            *(
                one.publish(TENANT, "old", [NewMessage(payload, key=f"k{number}")])
                for payload, one in zip(sent, (pair.a, pair.b) * 2, strict=True)
            )
        )
        found = [reply.messages[0] for reply in replies]
        assert len({item.id for item in found}) == 1
        assert sum(not item.replaced for item in found) == 1
        newest = max(found, key=lambda item: item.offset)
        message = await pair.a.message(TENANT, newest.id)
        assert message.payload == sent[found.index(newest)]
    held = await claim(pair.b, "old", 1_000)
    assert len(held) == 1 + ROUNDS


async def test_a_key_that_another_server_has_claimed_starts_a_new_message(pair: Pair) -> None:
    for number in range(ROUNDS):
        key = f"k{number}"
        (first,) = (await pair.a.publish(TENANT, "old", [NewMessage(b"1", key=key)])).messages
        claimed, reply = await asyncio.gather(
            claim(pair.b, "old", 1_000),
            pair.a.publish(TENANT, "old", [NewMessage(b"2", key=key)]),
        )
        mine = [item.payload for item in claimed if item.message.id == first.id]
        (second,) = reply.messages
        if second.replaced:
            # It came before the claim, whoever has that now.
            late = [d for d in await claim(pair.b, "old", 1_000) if d.message.id == first.id]
            assert mine + payloads(late) == [b"2"]
        else:
            assert mine == [b"1"]
            assert payloads(await claim(pair.b, "old", 1_000)) == [b"2"]


# -- claims (C1, S1) ---------------------------------------------------------------------


@law("C1")
async def test_claims_at_once_share_nothing(pair: Pair) -> None:
    sent = await publish(pair.a, "old", *(b"%d" % n for n in range(300)))
    for part in range(20):
        sent += await publish(pair.b, "old", b"%d" % part)
    got: Counter[int] = Counter()
    receipts: set[str] = set()
    while True:
        claims = await asyncio.gather(
            *(claim(one, "old", limit) for one in (pair.a, pair.b) for limit in (7, 13))
        )
        given = [delivery for part in claims for delivery in part]
        if not given:
            break
        got.update(int(delivery.message.id) for delivery in given)
        receipts |= {delivery.receipt for delivery in given}
    assert set(got) >= set(sent)
    assert set(got.values()) == {1}
    assert len(receipts) == len(got) == (await pair.b.stats(TENANT, "old")).in_flight


async def test_a_claim_of_one_is_settled_by_the_other(pair: Pair) -> None:
    await publish(pair.a, "old", b"1", b"2", b"3")
    held = await claim(pair.a, "old")
    verbs = (Ack(held[0].receipt, b"r"), Nack(held[1].receipt, delay_ms=0))
    assert await settled(pair.b, "old", *verbs, Reject(held[2].receipt, "no")) == ["ok"] * 3
    assert await settled(pair.a, "old", Ack(held[0].receipt), Ack(held[1].receipt)) == [
        "ok",
        "stale",
    ]
    result = await pair.a.result(TENANT, "old", held[0].message.id)
    assert result is not None
    assert result.result == b"r"
    stats = await pair.a.stats(TENANT, "old")
    assert (stats.done, stats.available, stats.failed, stats.in_flight) == (1, 1, 1, 1)


@law("S1")
async def test_two_servers_settle_one_receipt_once(pair: Pair) -> None:
    for _ in range(ROUNDS):
        await publish(pair.a, "old", b"1")
        held = await claim(pair.a, "old")
        verdicts = await asyncio.gather(
            settled(pair.a, "old", *(Nack(d.receipt, delay_ms=0) for d in held)),
            settled(pair.b, "old", *(Reject(d.receipt) for d in held)),
        )
        for one, other in zip(*verdicts, strict=True):
            assert {one, other} == {"ok", "stale"}
        stats = await pair.b.stats(TENANT, "old")
        assert stats.in_flight == 0


@law("S1")
async def test_a_lapsed_lease_is_handed_out_by_the_other_and_the_old_receipt_is_stale(
    pair: Pair,
) -> None:
    (first,) = await claim(pair.a, "old", lease_ms=1_000)
    pair.clock.advance(999)
    assert await claim(pair.b, "old") == []
    pair.clock.advance(1)
    (second,) = await claim(pair.b, "old", lease_ms=1_000)
    assert second.message.id == first.message.id
    assert second.attempts == 2
    assert await settled(pair.a, "old", Ack(first.receipt)) == ["stale"]
    assert await settled(pair.a, "old", Ack(second.receipt)) == ["ok"]


@law("C1")
async def test_receipts_grow_though_one_clock_is_behind(dialect: str) -> None:
    """Servers differ by some milliseconds, and a delivery comes back at once."""
    ahead = FakeClock()
    behind = FakeClock(ahead.now() - 20)
    async with opened(dialect, ahead, behind) as (a, b):
        await publish(a, "q", b"x")
        numbers: list[int] = []

        async def claim_by(engine: Engine) -> Receipt:
            (held,) = await claim(engine, "q")
            numbers.append(int(held.receipt.split("-")[2], 16))
            return held.receipt

        await settled(a, "q", Release(await claim_by(a)))
        await settled(b, "q", Nack(await claim_by(b), delay_ms=0))
        await settled(a, "q", Ack(await claim_by(a)))
        await a.replay(TENANT, "q", ReplaySource.DONE, None, 10)
        await claim_by(b)
        ahead.advance(120_000)
        await a.sweep()
        await claim_by(b)
        assert numbers == sorted(set(numbers))


@law("C1")
async def test_a_lease_begins_when_the_wait_for_it_is_over(pair: Pair, dialect: str) -> None:
    """Somebody has the first delivery locked for so long that the last claim would have ended."""
    own = await caller(dialect, NAME)
    try:
        await own.begin()
        await own.run("SELECT row_key FROM penstock_run FOR UPDATE")
        waiting = asyncio.create_task(claim(pair.a, "old", lease_ms=1_000))
        await asyncio.wait([waiting], timeout=0.3)
        pair.clock.advance(5_000)
        await own.commit()
        (held,) = await waiting
    finally:
        await own.close()
    assert held.claimed_at == pair.clock.now()
    assert held.lease_deadline == pair.clock.now() + 1_000


@law("P3")
async def test_what_the_database_has_lost_is_not_remembered(pair: Pair, dialect: str) -> None:
    """It failed over to one that lacks the last of what it had, while a server was idle.

    The numbers of what is lost are given out again, for something else.
    """
    await publish(pair.a, "old", b"lost", b"lost too")
    held = await claim(pair.a, "old")
    assert len(held) == 3
    found = server(dialect)
    segment, _ = segment_of(held[0].message.id)
    restart = (
        f"SELECT setval('penstock_log_segment_seq', {segment}, false)"
        if dialect == "postgresql"
        else f"ALTER TABLE penstock_log AUTO_INCREMENT = {segment}"
    )
    emptied = ("log", "run", "tally", "key", "newest")
    deletes = ";".join(f"DELETE FROM penstock_{table}" for table in emptied)
    found.kill_backends(NAME)
    found.sql(f"{deletes};{restart}", NAME)
    async with opened_again(dialect, pair.clock) as other:
        first, _ = await publish(other, "old", b"other", b"yet another")
        assert first == held[0].message.id
        assert payloads(await claim(pair.a, "old")) == [b"other", b"yet another"]
        page = await pair.a.read_log(TENANT, Offset(0), 10, payloads=True)
        assert [entry.payload for entry in page.entries] == [b"other", b"yet another"]


@law("Q2")
async def test_what_one_server_does_the_other_counts(pair: Pair) -> None:
    await publish(pair.a, "old", *(b"%d" % n for n in range(10)))
    held = await claim(pair.b, "old", 5)
    await settled(pair.a, "old", *(Ack(d.receipt) for d in held[:2]))
    for one in (pair.a, pair.b):
        stats = await one.stats(TENANT, "old")
        assert (stats.available, stats.in_flight, stats.done) == (6, 3, 2)
        pages = {s: await one.peek(TENANT, "old", s, None, 100) for s in State}
        counts = {state: len(page.items) for state, page in pages.items()}
        assert counts == {state: getattr(stats, state) for state in State}


# -- keys --------------------------------------------------------------------------------


@law("C2")
async def test_a_key_whose_message_another_server_holds_and_returns(pair: Pair) -> None:
    async def put(engine: Engine, payload: bytes) -> tuple[int, bool]:
        reply = await engine.publish(TENANT, "old", [NewMessage(payload, key="k")])
        return int(reply.messages[0].id), reply.messages[0].replaced

    first, _ = await put(pair.a, b"1")
    _, held = await claim(pair.a, "old")
    assert held.message.id == first
    second, replaced = await put(pair.b, b"2")
    assert (second != first, replaced) == (True, False)
    (held,) = await claim(pair.b, "old")
    assert await settled(pair.a, "old", Nack(held.receipt, delay_ms=0)) == ["ok"]
    assert await put(pair.b, b"3") == (second, True)
    (again,) = await claim(pair.a, "old")
    assert (again.payload, again.attempts) == (b"3", 2)
    assert await settled(pair.b, "old", Ack(again.receipt)) == ["ok"]
    third, replaced = await put(pair.a, b"4")
    assert (third != second, replaced) == (True, False)


@law("C1", "S2")
async def test_claims_returns_and_replacements_at_the_same_time(pair: Pair) -> None:
    """Whatever comes first: what was acked is not delivered again, and nothing is lost."""
    acked: list[int] = []
    published: list[tuple[int, bool]] = []

    async def put(engine: Engine, number: int) -> None:
        payload = str(number).encode()
        reply = await engine.publish(TENANT, "old", [NewMessage(payload, key="k")])
        published.append((int(reply.messages[0].id), reply.messages[0].replaced))

    async def take(engine: Engine, number: int) -> None:
        for held in await claim(engine, "old", 1):
            verb = Ack(held.receipt) if number % 3 == 0 else Release(held.receipt)
            assert await settled(engine, "old", verb) == ["ok"]
            if number % 3 == 0:
                acked.append(int(held.message.id))

    await settled(pair.a, "old", *[Ack(one.receipt) for one in await claim(pair.a, "old")])
    for number in range(2 * ROUNDS):
        one, other = (pair.a, pair.b) if number % 2 else (pair.b, pair.a)
        await asyncio.gather(
            put(one, number), take(other, number), put(other, -number), take(one, number + 1)
        )
    left = await claim(pair.a, "old")
    new = [message for message, replaced in published if not replaced]
    assert sorted([*acked, *(int(held.message.id) for held in left)]) == sorted(new)
    assert len(new) == len(set(new))
