"""An id that the sweep forgets while publishes look it up still makes one entry (P4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from penstock.model.message import NewMessage, Offset
from penstock.model.queue import TopicPolicy
from penstock.storage.contract import Engine
from penstock.testing.laws import law
from tests.unit.storage.sql.gates import Between
from tests.unit.storage.sql.pairs import TENANT, Pair

MESSAGE = NewMessage(b"x", id="x")
BATCH = [NewMessage(b"x")]
#: Seconds that a publish is given that may have to wait for the one under test.
WAIT_S = 0.5


def _publishing(engine: Engine, batch_id: str | None) -> Callable[[], Awaitable[Any]]:
    messages: Sequence[NewMessage] = [MESSAGE] if batch_id is None else BATCH
    return lambda: engine.publish(TENANT, "old", messages, batch_id=batch_id)


@law("P4")
@pytest.mark.parametrize("batch_id", [None, "b"], ids=["id", "batch id"])
async def test_an_id_that_is_forgotten_between_two_looks(
    pair: Pair, dialect: str, batch_id: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.a.put_topic(TENANT, "old", TopicPolicy(dedup_window_ms=1_000))
    on_a, on_b = _publishing(pair.a, batch_id), _publishing(pair.b, batch_id)
    await on_a()
    # Its window is over, and it is still on record.
    pair.clock.advance(2_000)
    between = Between(dialect, monkeypatch)
    other: list[asyncio.Task[Any]] = []

    async def publish_on_b() -> None:
        other.append(asyncio.ensure_future(on_b()))
        await asyncio.wait(other, timeout=WAIT_S)

    async def sweep() -> None:
        await pair.b.sweep(1_000)
        between.after("read_ids", publish_on_b)

    between.after("claim_ids", sweep)
    replies = [await on_a(), await other[0]]
    assert len({reply.messages[0].id for reply in replies}) == 1
    page = await pair.a.read_log(TENANT, Offset(0), 100, payloads=True)
    assert [entry.payload for entry in page.entries] == [b"0", b"x", b"x"]
