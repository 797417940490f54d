"""The numbers of claims, and receipts (C1, S1)."""

from __future__ import annotations

import pytest

from penstock.model.delivery import Receipt
from penstock.storage.sql.leases import Leases, read_receipts, receipt_prefix

NOW = 1_800_000_000_000


def test_c1_numbers_grow_and_are_never_alike() -> None:
    servers = [Leases(number) for number in (1, 2, 1023)]
    given = [leases.next(NOW + step // 1500) for step in range(4000) for leases in servers]
    assert len(set(given)) == len(given)
    for start in range(3):
        of_one = given[start::3]
        assert of_one == sorted(of_one)
    assert max(given) < 1 << 63


def test_c1_a_clock_that_goes_back_does_not_take_numbers_back() -> None:
    leases = Leases(7)
    first = leases.next(NOW)
    assert leases.next(NOW - 3_600_000) > first


def test_c1_a_later_claim_of_another_server_has_a_larger_number() -> None:
    assert Leases(1).next(NOW + 1) > Leases(1023).next(NOW)


def test_a_receipt_reads_back() -> None:
    receipt = Receipt(receipt_prefix(17, 9, Leases(3).next(NOW)) + f"{2**40 + 5:x}")
    place = (17, 9, Leases(3).next(NOW))
    assert read_receipts([receipt]) == {place: [(receipt, 2**40 + 5)]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "1-5-1",
        "1-5-1-",
        "1-5-1-1-1",
        "01-5-1-1",
        "1-5-1-0x1",
        "1-5-1-+1",
        "1-5-1-1_0",
        "1-5-1- 1",
        "1-5-1-A",
        "1-5-1-\uff11",
        "-1-5-1-1",
        "80000000-5-1-1",
        "1-10-1-1",
        "1-5-8000000000000000-1",
        "1-5-1-8000000000000000",
        "1-5-1-" + "1" * 5000,
        "nonsense",
    ],
)
def test_s1_what_is_not_written_just_so_is_no_receipt(text: str) -> None:
    assert read_receipts([Receipt(text)]) == {}
