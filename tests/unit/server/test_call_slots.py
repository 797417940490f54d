"""CallSlots: bounded for all, bounded for each tenant, and never all taken by one."""

from __future__ import annotations

import pytest

from penstock.errors import Busy
from penstock.server.call_slots import CallSlots


def fill(places: CallSlots, tenant: str) -> int:
    """Take as many as there are for the tenant; how many that is."""
    count = 0
    while True:
        try:
            places.take(tenant)
        except Busy:
            return count
        count += 1


def test_one_tenant_leaves_a_fifth_for_those_who_come_later() -> None:
    places = CallSlots("wait", 1_000, 1_000, field="wait_ms")
    assert fill(places, "a") == 800
    assert fill(places, "b") == 160
    assert fill(places, "c") >= 25
    assert places.taken <= 1_000


def test_tenants_that_come_and_go_end_up_with_equal_parts() -> None:
    places = CallSlots("wait", 900, 900, field=None)
    fill(places, "a")
    for _ in range(2_000):
        places.give_back("a")
        fill(places, "b")
        fill(places, "a")
    assert abs(places._taken["a"] - places._taken["b"]) <= 4
    assert 798 <= places.taken <= 802


def test_a_tenant_has_a_limit_of_its_own() -> None:
    places = CallSlots("wait", 1_000, 3, field="wait_ms")
    assert fill(places, "a") == 3
    assert fill(places, "b") == 3
    with pytest.raises(Busy) as refused:
        places.check("a")
    assert (refused.value.field, refused.value.limit) == ("wait_ms", 3)


def test_a_small_limit_is_used_up() -> None:
    assert fill(CallSlots("wait", 1, 10, field=None), "a") == 1
    assert fill(CallSlots("wait", 2, 10, field=None), "a") == 2
    assert fill(CallSlots("wait", 0, 10, field=None), "a") == 0


def test_places_are_given_back() -> None:
    places = CallSlots("wait", 1, 1, field=None)
    places.take("a")
    places.give_back("a")
    places.take("b")
    assert places.taken == 1
