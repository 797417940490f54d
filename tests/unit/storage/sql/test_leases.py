"""The numbers of claims (C1)."""

from __future__ import annotations

from penstock.storage.sql.claim_numbers import Leases
from penstock.testing.laws import law

NOW = 1_800_000_000_000


@law("C1")
def test_numbers_grow_and_are_never_alike() -> None:
    servers = [Leases(number) for number in (1, 2, 1023)]
    given = [leases.next(NOW + step // 1500) for step in range(4000) for leases in servers]
    assert len(set(given)) == len(given)
    for start in range(3):
        of_one = given[start::3]
        assert of_one == sorted(of_one)
    assert max(given) < 1 << 63


@law("C1")
def test_a_clock_that_goes_back_does_not_take_numbers_back() -> None:
    leases = Leases(7)
    first = leases.next(NOW)
    assert leases.next(NOW - 3_600_000) > first


@law("C1")
def test_a_later_claim_of_another_server_has_a_larger_number() -> None:
    assert Leases(1).next(NOW + 1) > Leases(1023).next(NOW)
