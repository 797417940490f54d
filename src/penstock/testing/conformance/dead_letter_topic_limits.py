"""Limits that refuse a publish do not refuse a dead-letter copy."""

from __future__ import annotations

import pytest

from penstock.model.delivery import (
    Reject,
)
from penstock.model.limits import (
    MAX_HEADERS,
    MAX_HEADERS_BYTES,
)
from penstock.model.message import HeaderValue, NewMessage
from penstock.model.queue import TopicPolicy
from penstock.model.states import State
from penstock.testing.conformance.dead_letter_topic import (
    copying,
    only_headers,
    payloads,
)
from penstock.testing.conformance.harness import (
    TENANT,
    Conformance,
    Store,
    ids_of,
    opened_with,
)
from penstock.testing.conformance.ready import listen

__all__ = ["TestNothingRefusesACopy"]


class TestNothingRefusesACopy(Conformance):
    """The limits of a publish do not apply to copies."""

    async def test_a_full_queue_takes_copies(self, store: Store) -> None:
        await store.queue("d", "topic = 'dead'", max_depth=1)
        await store.queue(filter="topic = 'orders'", dead_letter_topic="dead")
        await store.publish(b"1", b"2", b"3")
        for _ in range(3):
            await store.fail_one()
        assert await payloads(store) == [b"1", b"2", b"3"]

    @opened_with(publish_deliveries=2)
    async def test_more_deliveries_than_a_publish_may_make(self, store: Store) -> None:
        for name in "def":
            await store.queue(name, "topic = 'dead'")
        await store.queue(filter="topic = 'orders'", dead_letter_topic="dead")
        await store.publish(b"1", b"2")
        claimed = await store.claim(limit=2)
        await store.engine.settle(TENANT, "q", [Reject(d.receipt) for d in claimed])
        for name in "def":
            assert await payloads(store, name) == [b"1", b"2"]

    @opened_with(auto_create=True)
    async def test_a_copy_creates_a_queue(self, store: Store) -> None:
        await store.engine.put_topic(
            TENANT, "dead", TopicPolicy(queue_defaults={"max_depth": 1, "max_attempts": 9})
        )
        await store.queue(filter="topic = 'orders'", dead_letter_topic="dead")
        await store.publish(b"1", b"2")
        claimed = await store.claim(limit=2)
        ear = listen(store)
        await store.engine.settle(TENANT, "q", [Reject(d.receipt) for d in claimed])
        assert await payloads(store, "dead") == [b"1", b"2"]
        assert (await store.engine.get_queue(TENANT, "dead")).policy.max_attempts == 9
        assert "dead" in ear.heard()
        assert ids_of(await store.claim("dead")) == [(await store.log())[2].id]

    @opened_with(auto_create=True, queues=1)
    async def test_at_the_limit_of_queues_it_creates_none(self, store: Store) -> None:
        await store.queue(filter="topic = 'orders'", dead_letter_topic="dead")
        (message_id,) = await store.publish(b"1")
        await store.fail_one()
        assert await store.states(message_id) == {"q": State.FAILED}
        assert [m.topic for m in await store.log()] == ["orders", "dead"]
        assert [info.name for info in await store.engine.list_queues(TENANT)] == ["q"]

    @pytest.mark.parametrize(
        "headers",
        [
            {f"h{n:02}": n for n in range(MAX_HEADERS)},
            {f"h{n:02}": "é" * 100 for n in range(MAX_HEADERS)},
            {"a": "x" * (MAX_HEADERS_BYTES - 40), "b": "y"},
            {f"dead_letter_{n}": "x" * 200 for n in range(60)},
        ],
        ids=["many", "large", "one", "alike"],
    )
    async def test_headers_that_do_not_fit_are_dropped_and_counted(
        self, store: Store, headers: dict[str, HeaderValue]
    ) -> None:
        await copying(store)
        await store.publish(NewMessage(b"x", headers))
        await store.fail_one()
        found = dict(await only_headers(store))
        assert len(found) <= MAX_HEADERS
        sizes = [len(v.encode()) if isinstance(v, str) else 8 for v in found.values()]
        assert sum(sizes) + sum(map(len, found)) <= MAX_HEADERS_BYTES
        kept = headers.items() & found.items()
        dropped = found["dead_letter_dropped_headers"]
        assert isinstance(dropped, int)
        assert dropped > 0
        assert len(kept) + dropped == len(headers)
        assert found["dead_letter_original_queue"] == "q"
        assert found["dead_letter_error"] == "broken"
