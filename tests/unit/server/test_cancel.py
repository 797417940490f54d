"""Canceling over HTTP: which grants it needs (T1), and that a refusal cancels nothing (E1)."""

from __future__ import annotations

import pytest

from penstock.server.access import Access, Keys
from penstock.testing.laws import law
from tests.unit.server.conftest import Door, application


@pytest.fixture
async def guarded(door: Door) -> Door:
    """Two queues that have message 0, behind a door that asks for credentials."""
    for name in ("left", "right"):
        await door.broker.create_queue(name)
    await door.broker.publish("orders", b"x")
    keys = Keys(door.broker.engine, door.clock)
    return Door(application(door.broker, Access(door.clock, keys)), door.broker, door.clock)


async def cancelled(door: Door, path: str, *grants: str):
    made = await door.keys.create("default", list(grants))
    headers = {"authorization": f"Bearer {made.key}"}
    return await door.call("DELETE", path, headers=headers)


async def test_one_queue_and_then_every_queue(guarded) -> None:
    reply = await cancelled(guarded, "/v1/messages/0?queue=left", "admin:left")
    assert reply.json() == {"count": 1, "queues": ["left"], "pending": []}
    reply = await cancelled(guarded, "/v1/messages/0", "admin:*")
    assert reply.json() == {"count": 1, "queues": ["right"], "pending": []}
    reply = await cancelled(guarded, "/v1/messages/0", "admin:*")
    assert reply.json() == {"count": 0, "queues": [], "pending": []}


@law("T1")
@pytest.mark.parametrize(
    "path, grants",
    [
        ("/v1/messages/0", ("admin:left", "admin:right")),
        ("/v1/messages/0", ("consume:*", "publish:*")),
        ("/v1/messages/0?queue=left", ("admin:right",)),
        ("/v1/messages/0?queue=left", ("consume:*",)),
    ],
    ids=str,
)
async def test_a_narrow_credential_is_refused(guarded, path, grants) -> None:
    reply = await cancelled(guarded, path, *grants)
    assert reply.status == 403
    found = await guarded.broker.message(0)
    assert [item.queue for item in found.deliveries] == ["left", "right"]


@law("E1")
@pytest.mark.parametrize(
    "path, status",
    [
        ("/v1/messages/x", 400),
        ("/v1/messages/0?queue=no%20name", 400),
        ("/v1/messages/0?queues=left", 400),
        ("/v1/messages/77", 404),
        ("/v1/messages/0?queue=nope", 404),
    ],
)
async def test_bad_input(guarded, path, status) -> None:
    reply = await cancelled(guarded, path, "admin:*")
    assert reply.status == status
    assert len((await guarded.broker.message(0)).deliveries) == 2
