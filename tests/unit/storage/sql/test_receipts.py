"""Receipts: read back as they were made, by every server, and made by nobody else (S1, T1)."""

from __future__ import annotations

import pytest

from penstock.model.delivery import Ack, Receipt, Release, Verdict
from penstock.model.message import NewMessage
from penstock.storage.sql.claim_numbers import Leases, Receipts
from penstock.testing.laws import law
from tests.unit.storage.sql.pairs import TENANT, Pair, opened_again

NOW = 1_800_000_000_000
RECEIPTS = Receipts(b"key")
LEASE = Leases(3).next(NOW)


def test_a_receipt_reads_back() -> None:
    receipt = Receipt(RECEIPTS.prefix(17, 9, LEASE) + f"{2**40 + 5:x}")
    assert RECEIPTS.read([receipt]) == {(17, 9, LEASE): [(receipt, 2**40 + 5)]}


@law("T1")
def test_a_receipt_of_another_store_is_none() -> None:
    other = Receipts(b"other key")
    assert other.read([Receipt(RECEIPTS.prefix(17, 9, LEASE) + "1")]) == {}


@law("S1")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "1-5-1-{tag}",
        "1-5-1-{tag}-",
        "1-5-1-{tag}-1-1",
        "1-5-1-1",
        "1-5-1--1",
        "1-5-2-{tag}-1",
        "1-4-1-{tag}-1",
        "2-5-1-{tag}-1",
        "01-5-1-{tag}-1",
        "1-5-1-0{tag}-1",
        "1-5-1-{tag}-0x1",
        "1-5-1-{tag}-+1",
        "1-5-1-{tag}-1_0",
        "1-5-1-{tag}- 1",
        "1-5-1-{tag}-A",
        "1-5-1-{tag}-\uff11",
        "-1-5-1-{tag}-1",
        "80000000-5-1-{tag}-1",
        "1-10-1-{tag}-1",
        "1-5-8000000000000000-{tag}-1",
        "1-5-1-{tag}-8000000000000000",
        "1-5-1-{tag}-" + "1" * 5000,
        "nonsense",
    ],
)
def test_what_is_not_written_just_so_is_no_receipt(text: str) -> None:
    tag = RECEIPTS.prefix(1, 5, 1).split("-")[3]
    assert RECEIPTS.read([Receipt(f"1-5-1-{tag}-1")])
    assert RECEIPTS.read([Receipt(text.replace("{tag}", tag))]) == {}


@law("T1")
async def test_another_consumers_receipt_cannot_be_guessed(pair: Pair) -> None:
    """Not even by somebody who knows all of it but what only the store can compute."""
    await pair.a.publish(TENANT, "old", [NewMessage(b"1")])
    (victim,) = await pair.a.claim(TENANT, "old", "victim", 1, None)
    (own,) = await pair.a.claim(TENANT, "old", "attacker", 1, None)
    known = victim.receipt.split("-")
    tag = own.receipt.split("-")[3]
    guesses = ["-".join([*known[:3], guess, known[4]]) for guess in (tag, "0" * 16, "")]
    guesses.append("-".join([*known[:3], known[4]]))
    reply = await pair.a.settle(TENANT, "old", [Ack(Receipt(guess)) for guess in guesses])
    assert {outcome.verdict for outcome in reply.outcomes} == {Verdict.STALE}
    reply = await pair.b.settle(TENANT, "old", [Ack(victim.receipt), Release(own.receipt)])
    assert [outcome.verdict for outcome in reply.outcomes] == [Verdict.OK] * 2


async def test_receipts_hold_on_a_server_that_comes_later(dialect: str, pair: Pair) -> None:
    (delivery,) = await pair.a.claim(TENANT, "old", "c", 1, None)
    async with opened_again(dialect, pair.clock) as later:
        reply = await later.settle(TENANT, "old", [Ack(delivery.receipt)])
    assert reply.outcomes[0].ok
