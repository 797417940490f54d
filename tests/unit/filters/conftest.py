"""A message for filters to look at."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.model.message import HeaderValue, Message, MessageId, Offset


def _message(topic: str = "orders", **headers: HeaderValue) -> Message:
    return Message(
        id=MessageId(1),
        offset=Offset(1),
        topic=topic,
        priority=4,
        published_at=0,
        deliver_at=0,
        expires_at=None,
        size=100,
        checksum=0,
        headers=headers,
    )


@pytest.fixture
def message() -> Callable[..., Message]:
    """Make a message: topic and headers."""
    return _message
