"""Filters for editors, over HTTP."""

from __future__ import annotations

import pytest

from penstock.filters.editor import MAX_KNOWN_HEADERS


async def test_a_filter_is_validated(door) -> None:
    reply = await door.call("POST", "/v1/filters/validate", {"text": "topic = 'a' AND b > 1"})
    assert (reply.status, reply.json()["valid"], reply.json()["indexed"]) == (200, True, True)
    reply = await door.call("POST", "/v1/filters/validate", {"text": "a IN (1, b)"})
    found = reply.json()
    assert (reply.status, found["valid"], found["position"], found["end"]) == (200, False, 9, 10)


async def test_a_filter_is_completed(door) -> None:
    body = {"text": "am", "cursor": 2, "headers": ["amount"]}
    reply = await door.call("POST", "/v1/filters/complete", body)
    items = [{"text": "amount", "kind": "header"}]
    assert reply.json() == {"start": 0, "end": 2, "items": items}


@pytest.mark.parametrize(
    "path, body, field",
    [
        ("validate", {}, "text"),
        ("validate", {"text": 5}, "text"),
        ("complete", {"text": "a"}, "cursor"),
        ("complete", {"text": "a", "cursor": 2}, "cursor"),
        ("complete", {"text": "a", "cursor": -1}, "cursor"),
        ("complete", {"text": "a", "cursor": 1, "headers": [1]}, "headers"),
        ("complete", {"text": "", "cursor": 0, "headers": ["h"] * 1_001}, "headers"),
    ],
)
async def test_bad_bodies_are_refused(door, path: str, body: dict, field: str) -> None:
    reply = await door.call("POST", f"/v1/filters/{path}", body)
    assert reply.status in (400, 413)
    assert field in reply.body.decode()
    assert MAX_KNOWN_HEADERS == 1_000


async def test_an_error_of_a_queues_filter_has_an_end(door) -> None:
    reply = await door.call("PUT", "/v1/queues/orders", {"filter": "a IN (1, b)"})
    assert (reply.status, reply.json()["position"], reply.json()["end"]) == (400, 9, 10)
