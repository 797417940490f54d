"""What a dead-letter copy has, and which deliveries are copied."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.model.dead_letter_copies import (
    MAX_HOPS,
    EndedDelivery,
    copies,
    dead_letter_copy,
    is_circular,
)
from penstock.model.limits import MAX_HEADERS
from penstock.model.message import Message, MessageId, NewMessage, Offset
from penstock.model.queue import QueuePolicy
from penstock.model.states import State, Transition

MESSAGE = Message(MessageId(7), Offset(9), "orders", 6, 1, 2, 3, 1, 0, "p", "k", "text/plain")
POLICY = QueuePolicy(dead_letter_topic="dead")


def ended(headers: dict[str, Any] | None = None, error: str | None = None) -> EndedDelivery:
    message = replace(MESSAGE, headers=headers or {}, max_attempts=4)
    return EndedDelivery("q", message, b"x", State.FAILED, Transition.NACK, error, 3, 1_000)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("expired", [True, False])
def test_only_what_failed_or_expired_is_copied(state: State, *, expired: bool) -> None:
    policy = replace(POLICY, dead_letter_expired=expired)
    wanted = state is State.FAILED or (expired and state is State.EXPIRED)
    assert copies(policy, state) is wanted
    assert not copies(replace(policy, dead_letter_topic=None), state)


def test_a_copy_has_the_message_and_its_story() -> None:
    copy = dead_letter_copy(ended({"color": "red"}, "bad"), auto_create=False)
    assert copy == NewMessage(
        b"x",
        {
            "color": "red",
            "dead_letter_original_queue": "q",
            "dead_letter_original_topic": "orders",
            "dead_letter_message_id": 7,
            "dead_letter_state": "failed",
            "dead_letter_transition": "nack",
            "dead_letter_attempts": 3,
            "dead_letter_at": 1_000,
            "dead_letter_hops": 1,
            "dead_letter_error": "bad",
            "dead_letter_key": "k",
        },
        partition_key="p",
        priority=6,
        content_type="text/plain",
        auto_create=False,
    )


def test_a_copy_of_a_copy_has_the_newest_story() -> None:
    first = dead_letter_copy(ended({"a": 1}, "bad"), auto_create=True)
    second = dead_letter_copy(ended(dict(first.headers)), auto_create=True)
    assert second.headers["dead_letter_hops"] == 2
    assert "dead_letter_error" not in second.headers
    assert second.headers["a"] == 1
    assert len(second.headers) == len(first.headers) - 1


@pytest.mark.parametrize(
    "hops, circular",
    [(MAX_HOPS - 1, False), (MAX_HOPS, True), (2**62, True), (-5, False), (True, False)],
)
def test_copies_of_copies_end(hops: Any, *, circular: bool) -> None:
    message = replace(MESSAGE, headers={"dead_letter_hops": hops})
    assert is_circular(POLICY, message) is circular


@pytest.mark.parametrize("hops", ["16", 16.0, True, -5])
def test_a_count_that_no_engine_wrote_begins_anew(hops: Any) -> None:
    copy = dead_letter_copy(ended({"dead_letter_hops": hops}), auto_create=True)
    assert copy.headers["dead_letter_hops"] == 1


def test_a_message_of_the_topic_is_not_copied() -> None:
    assert is_circular(POLICY, replace(MESSAGE, topic="dead"))
    assert not is_circular(POLICY, MESSAGE)


def test_as_many_headers_as_fit_are_kept() -> None:
    story = len(dead_letter_copy(ended(), auto_create=True).headers)
    room = MAX_HEADERS - story
    for count, dropped in ((room, 0), (room + 1, 2)):
        headers = {f"h{n:02}": n for n in range(count)}
        copy = dead_letter_copy(ended(headers), auto_create=True)
        assert len(copy.headers) == MAX_HEADERS
        assert copy.headers.get("dead_letter_dropped_headers", 0) == dropped
        # By name, so that every engine keeps the same.
        assert all(f"h{n:02}" in copy.headers for n in range(count - dropped))
