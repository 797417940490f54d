"""Idempotency ids: a request that is repeated is stored once (P4).

A publish has one for the whole batch. A settle with publish has none of its own, so there each
message that brings no id gets one. An id is the client's random prefix and a counter. It is
nobody else's, so where the server has seen it before, that was an earlier try of the same
request, and the caller, who called once, is not told.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from msgspec.structs import replace

from penstock.client.options import IdPrefix
from penstock.model.message import NewMessage, Published

__all__ = ["Ids"]


class Ids:
    """The ids of one client."""

    def __init__(self, prefix: IdPrefix) -> None:
        self._draw = prefix
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._prefix = self._draw()
        # Of one width, so that the keys of a store grow in order, which is cheaper.
        self._form = self._prefix.replace("%", "%%") + "-%010x"
        self._count = 0

    def next(self) -> str:
        """An id that was never used."""
        number = self._take(1)
        return self._form % number

    def complete(self, messages: Sequence[NewMessage]) -> Sequence[NewMessage]:
        """The messages, each with an id."""
        first = self._take(len(messages))
        form = self._form
        # Positional and in one expression: 0.3 to 0.4 microseconds a message.
        return [
            message
            if message.id is not None
            else NewMessage(
                message.payload,
                message.headers,
                form % number,
                message.key,
                message.partition_key,
                message.priority,
                message.content_type,
                message.deliver_at,
                message.expires_at,
                message.delay_ms,
                message.ttl_ms,
            )
            for number, message in enumerate(messages, first)
        ]

    def _take(self, count: int) -> int:
        """The first of ``count`` numbers that were never used."""
        if os.getpid() != self._process:
            # A forked child that counted on would reuse the parent's ids, and lose messages.
            self._begin()
        first = self._count
        self._count += count
        return first

    def as_first(
        self, messages: Sequence[NewMessage], published: Sequence[Published]
    ) -> tuple[Published, ...]:
        """The replies to a repeated request, without the duplicates that it made itself."""
        return tuple(
            replace(item, duplicate=False)
            if item.duplicate and message.id is not None and message.id.startswith(self._prefix)
            else item
            for message, item in zip(messages, published, strict=True)
        )
