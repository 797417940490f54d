"""find: by idempotency id, and by key in bounded pages of the log."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker import Broker, read_verbs
from penstock.errors import BadInput, BadName, TooLarge
from penstock.model.message import NewMessage
from penstock.model.queue import TopicPolicy
from penstock.testing.laws import law


async def test_by_id(q: Broker) -> None:
    published = await q.publish("orders", b"x", id="mine", headers={"n": 1})
    found = await q.find("orders", id="mine")
    assert [(item.id, dict(item.headers)) for item in found.messages] == [(published.id, {"n": 1})]
    assert found.next_offset is None
    assert (await q.find("orders", id="other")).messages == ()


async def test_by_id_and_partition_key(q: Broker) -> None:
    await q.put_topic("orders", TopicPolicy(dedup_scope="partition_key"))
    first = await q.publish("orders", b"1", id="mine", partition_key="a")
    second = await q.publish("orders", b"2", id="mine")
    for key, ids in {"a": (first.id,), "b": (), "": (second.id,), None: (second.id,)}.items():
        found = await q.find("orders", id="mine", partition_key=key)
        assert tuple(item.id for item in found.messages) == ids


async def test_by_key_in_every_state(q: Broker) -> None:
    first = await q.publish("orders", b"1", key="k")
    (held,) = await q.claim("orders")
    second = await q.publish("orders", b"2", key="k", headers={"n": 2})
    await q.publish("orders", b"3", key="k", headers={"n": 3})
    await q.publish("orders", b"4", key="other")
    await q.publish("bills", b"5", key="k")
    found = await q.find("orders", key="k")
    assert held.message.id == first.id
    assert [item.id for item in found.messages] == [first.id, second.id]
    assert dict(found.messages[1].headers) == {"n": 3}
    assert found.next_offset is None


async def test_a_long_log_is_searched_in_pages(q: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_verbs, "FIND_SCAN", 4)
    batch = [NewMessage(b"", key="k" if n % 3 == 0 else None) for n in range(10)]
    # A key that waits would be replaced: claim each message first.
    ids = []
    for message in batch:
        ids += [item.id for item in (await q.publish_batch("orders", [message])).messages]
        await q.claim("orders")
    found, start, pages = [], 0, 0
    while True:
        page = await q.find("orders", key="k", start=start)
        found += [item.id for item in page.messages]
        pages += 1
        if page.next_offset is None:
            break
        start = page.next_offset
    assert found == ids[::3]
    assert pages == 3


async def test_an_empty_log(q: Broker) -> None:
    found = await q.find("orders", key="k")
    assert (found.messages, found.next_offset) == ((), None)


@law("E1")
@pytest.mark.parametrize(
    "arguments, error, field",
    [
        ({}, BadInput, "id"),
        ({"id": "a", "key": "k"}, BadInput, "key"),
        ({"id": ""}, BadInput, "id"),
        ({"key": ""}, BadInput, "key"),
        ({"id": 7}, BadInput, "id"),
        ({"key": b"k"}, BadInput, "key"),
        ({"key": "x" * 2_000}, TooLarge, "key"),
        ({"key": "k", "start": -1}, BadInput, "start"),
        ({"key": "k", "partition_key": "p"}, BadInput, "partition_key"),
        ({"id": "a", "partition_key": 7}, BadInput, "partition_key"),
        ({"id": "a", "partition_key": "\ud800"}, BadInput, "partition_key"),
        ({"id": "a", "partition_key": "x" * 2_000}, TooLarge, "partition_key"),
        ({"key": "k", "start": "x"}, BadInput, "start"),
    ],
)
async def test_bad_input(
    q: Broker, arguments: dict[str, Any], error: type[Exception], field: str
) -> None:
    with pytest.raises(error) as refused:
        await q.find("orders", **arguments)
    assert refused.value.field == field  # type: ignore[attr-defined]


@law("E1")
async def test_a_bad_topic(q: Broker) -> None:
    with pytest.raises(BadName):
        await q.find("no topic", id="a")
