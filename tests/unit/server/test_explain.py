"""Explaining shows what a message holds to those only who may read it (T1)."""

from __future__ import annotations

import pytest

from penstock.server.access import Access, Keys
from penstock.testing.laws import law
from tests.unit.server.conftest import Door, application

SECRET = "s3cret-value"


@pytest.fixture
async def guarded(door: Door) -> Door:
    """Queue ``paid`` does not take the message; ``all`` has it."""
    await door.broker.create_queue("paid", "state = 'paid' AND NOT owner = 'nobody' AND total > 5")
    await door.broker.create_queue("all")
    await door.broker.create_queue("other")
    await door.broker.publish("orders", b"", headers={"state": SECRET, "owner": SECRET})
    keys = Keys(door.broker.engine, door.clock)
    return Door(application(door.broker, Access(door.clock, keys)), door.broker, door.clock)


async def explained(door: Door, *grants: str) -> str:
    made = await door.keys.create("default", list(grants))
    reply = await door.call(
        "GET",
        "/v1/messages/0/explain?queue=paid",
        headers={"authorization": f"Bearer {made.key}"},
    )
    assert reply.status == 200
    (reason,) = reply.json()["reasons"]
    return str(reason)


@law("T1")
async def test_a_consumer_of_another_queue_sees_conditions_without_values(guarded):
    reason = await explained(guarded, "consume:paid")
    assert SECRET not in reason
    assert reason == "the filter is not TRUE: state = 'paid' is not TRUE; total > 5 is not TRUE"


@pytest.mark.parametrize(
    "grants",
    [("consume:paid", "consume:all"), ("consume:*",), ("admin:*",), ("consume:paid", "admin:al*")],
    ids=str,
)
async def test_whoever_may_read_the_message_sees_its_values(guarded, grants):
    reason = await explained(guarded, *grants)
    assert f"state = 'paid' is FALSE because state is '{SECRET}'" in reason
    assert "total > 5 is NULL because header total is absent" in reason
