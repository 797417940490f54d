"""Calls that read through a log or a queue: bounded, and over when their caller hangs up."""

from __future__ import annotations

import asyncio

import pytest

from penstock.model.message import NewMessage
from penstock.server.access import Access, Keys
from penstock.server.service import ServiceLimits
from tests.unit.server.conftest import Answer, Door, application

PREVIEW = "/v1/preview?filter=TRUE"
#: Slices that a preview of the log takes.
SLICES = 10
SCANS = 2


@pytest.fixture
async def long_log(door: Door) -> Door:
    """A door to a store with a long log, which lets two such calls of a tenant in."""
    batch = [NewMessage(b"") for _ in range(500)]
    for _ in range(SLICES):
        await door.broker.publish_batch("t", batch)
    return Door(
        application(
            door.broker,
            Access(door.clock, Keys(door.broker.engine, door.clock), enabled=False),
            ServiceLimits(tenant_scans=SCANS),
        ),
        door.broker,
        door.clock,
    )


async def scans(door: Door, count: int) -> None:
    """Until so many are under way."""
    async with asyncio.timeout(60):
        while door.service.scans.taken != count:  # noqa: ASYNC110  (a turn of the loop, no time)
            await asyncio.sleep(0)


def begin(door: Door, *call: object, leave: asyncio.Event | None = None) -> asyncio.Task[Answer]:
    return asyncio.ensure_future(door.call(*call, leave=leave))  # type: ignore[arg-type]


async def test_a_preview_is_done_in_slices(long_log):
    turns = long_log.broker.engine.turns
    before = turns.granted
    reply = await long_log.call("GET", PREVIEW)
    assert reply.json()["count"] == 500 * SLICES
    # A slice also ends by time, so a loaded machine takes more of them.
    assert turns.granted - before >= SLICES


@pytest.mark.parametrize(
    "call",
    [
        ("GET", PREVIEW),
        ("PUT", "/v1/queues/new?dry_run=true", {"filter": "TRUE"}),
        ("GET", "/v1/queues/t/deliveries?where=FALSE"),
        ("POST", "/v1/queues/t/replays", {"source": "log", "dry_run": True}),
    ],
    ids=["preview", "dry run", "browse", "replay"],
)
async def test_it_ends_with_its_caller(long_log, call):
    """Whoever hangs up leaves no work behind."""
    turns = long_log.broker.engine.turns
    leave = asyncio.Event()
    before = turns.granted
    calling = begin(long_log, *call, leave=leave)
    await scans(long_log, 1)
    leave.set()
    async with asyncio.timeout(60):
        reply = await calling
    assert reply.status == 0
    assert long_log.service.scans.taken == 0
    begun = turns.granted
    assert begun - before < SLICES
    for _ in range(20):
        await asyncio.sleep(0)
    assert turns.granted <= begun + 1


async def test_a_tenant_has_so_many_at_a_time(long_log):
    first = [begin(long_log, "GET", PREVIEW) for _ in range(SCANS)]
    await scans(long_log, SCANS)
    refused = await long_log.call("GET", PREVIEW)
    assert refused.status == 503
    assert refused.headers["retry-after"] == "1"
    assert [(await task).status for task in first] == [200] * SCANS
    assert (await long_log.call("GET", PREVIEW)).status == 200


async def test_a_stopping_server_refuses_them(long_log):
    calling = begin(long_log, "GET", PREVIEW)
    await scans(long_log, 1)
    long_log.service.stopping.set()
    async with asyncio.timeout(60):
        assert (await calling).status == 503
    assert (await long_log.call("GET", PREVIEW)).status == 503
