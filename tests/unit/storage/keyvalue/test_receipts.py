"""Receipts: never the same twice, and made by nobody but the store (C1, S1, T1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.model.delivery import Ack, Delivery, Receipt, Release, Verdict
from penstock.model.message import NewMessage
from penstock.model.queue import QueuePolicy, Start
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.engines import open_engine
from penstock.storage.keyvalue.receipts import Receipts
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

CLAIM = 0x26F05B59D3B20007
TENANT = "t"
RECEIPTS = Receipts(b"key")


@law("C1")
def test_receipts_name_queue_claim_grant_and_attempt() -> None:
    receipt = RECEIPTS.of(10, CLAIM, 255, 3)
    assert receipt == "a-26f05b59d3b20007-ff-3-fdc1289d07f41f3d"
    parts = [(n, c, g, a) for n in (0, 1) for c in (CLAIM, 1) for g in (1, 2) for a in (1, 2)]
    assert len({RECEIPTS.of(*part) for part in parts}) == len(parts)
    assert RECEIPTS.read(receipt) == (10, CLAIM, 255, 3)


@law("T1")
def test_each_grant_ends_in_bits_of_its_own() -> None:
    tags = RECEIPTS.tags(3, 5, 1_000)
    assert len(set(tags)) == 1_000
    assert tags == [tag for grant in range(5, 1_005) for tag in RECEIPTS.tags(3, grant, 1)]
    assert not set(tags) & set(RECEIPTS.tags(4, 5, 1_000))
    assert not set(tags) & set(Receipts(b"other").tags(3, 5, 1_000))


@law("S1")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "----",
        "a-26f05b59d3b20007-ff-3",
        "a-26f05b59d3b20007-ff-3-0",
        "a-26f05b59d3b20007-fe-3-{tag}",
        "b-26f05b59d3b20007-ff-3-{tag}",
        "0a-26f05b59d3b20007-ff-3-{tag}",
        "a-26f05b59d3b20007-f_f-3-{tag}",
        "a-26f05b59d3b20007-ff-\uff13-{tag}",
        "a-26f05b59d3b20007-ff-3-{tag}-1",
        "a-26f05b59d3b20007-" + "f" * 5_000 + "-3-{tag}",
        "f" * 17 + "-26f05b59d3b20007-ff-3-{tag}",
        "\ud800",
    ],
)
def test_what_is_not_written_just_so_is_no_receipt(text: str) -> None:
    (tag,) = RECEIPTS.tags(10, 255, 1)
    assert RECEIPTS.read(text.replace("{tag}", f"{tag:x}")) is None


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    opened = await open_engine(f"rocksdb://{tmp_path}/store", EngineOptions(clock=FakeClock()))
    await opened.put_queue(TENANT, "q", QueuePolicy(), Start())
    await opened.publish(TENANT, "t", [NewMessage(b"%d" % n) for n in range(4)])
    yield opened
    await opened.close()


async def verdicts(engine: Engine, *receipts: str) -> set[Verdict]:
    reply = await engine.settle(TENANT, "q", [Ack(Receipt(text)) for text in receipts])
    return {outcome.verdict for outcome in reply.outcomes}


async def claim(engine: Engine, consumer: str) -> Delivery:
    (delivery,) = await engine.claim(TENANT, "q", consumer, 1, None)
    return delivery


@law("T1")
async def test_another_consumers_receipt_cannot_be_guessed(engine: Engine) -> None:
    """Not even by somebody who knows all of it but what only the store can compute."""
    victim, own = await claim(engine, "victim"), await claim(engine, "attacker")
    known, tag = victim.receipt.split("-")[:4], own.receipt.split("-")[4]
    guesses = ["-".join([*known, guess]) for guess in (tag, "0", "")] + ["-".join(known)]
    assert await verdicts(engine, *guesses) == {Verdict.STALE}
    reply = await engine.settle(TENANT, "q", [Ack(victim.receipt), Release(own.receipt)])
    assert [outcome.verdict for outcome in reply.outcomes] == [Verdict.OK] * 2
    # Nor can somebody claim to have acked it.
    assert await verdicts(engine, *guesses) == {Verdict.STALE}
    assert await verdicts(engine, victim.receipt) == {Verdict.OK}


async def test_receipts_hold_after_reopening(engine: Engine, tmp_path: Path) -> None:
    held, done = await claim(engine, "c"), await claim(engine, "c")
    assert await verdicts(engine, done.receipt) == {Verdict.OK}
    await engine.close()
    again = await open_engine(f"rocksdb://{tmp_path}/store", EngineOptions(clock=FakeClock()))
    try:
        assert await verdicts(again, held.receipt, done.receipt) == {Verdict.OK}
    finally:
        await again.close()
