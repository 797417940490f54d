"""The bulk verbs over HTTP: route, assign, replay, purge, cancel, peek, sweep.

A purge, and a replay without a ``replay_id``, would do their work twice if they were retried, and a
repeated cancel would answer 0. So if the first attempt may have taken effect, ``Unreachable`` is
raised instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.api import BULK_LIMIT, ROUTE_BATCH
from penstock.broker.scope import (
    check_assignment,
    check_count,
    check_ids,
    check_offset,
    check_replay,
    to_message_id,
    to_state,
    to_where,
)
from penstock.client.calling import read
from penstock.client.scope import Scope
from penstock.errors import BadInput
from penstock.model.delivery import (
    CancelReply,
    Page,
    PurgeReply,
    ReplayReply,
    ReplaySource,
    RouteReply,
    SweepReply,
)
from penstock.model.duration import Duration, to_ms
from penstock.model.identity import StoreIdentity, check_identity
from penstock.model.limits import MAX_FILTER_BYTES, MAX_PAGE, check_queue_name
from penstock.model.message import Offset
from penstock.model.states import State
from penstock.wire.bodies import (
    ArchivedBody,
    AssignBody,
    PurgeBody,
    ReplayBody,
    RouteBody,
    SweepBody,
)
from penstock.wire.codecs import encode_msgpack

__all__ = ["Replaying", "is_sendable"]

_ROUTED: Final = msgspec.msgpack.Decoder(RouteReply)
_REPLAYED: Final = msgspec.msgpack.Decoder(ReplayReply)
_PURGED: Final = msgspec.msgpack.Decoder(PurgeReply)
_CANCELLED: Final = msgspec.msgpack.Decoder(CancelReply)
_PAGE: Final = msgspec.msgpack.Decoder(Page)
_SWEPT: Final = msgspec.msgpack.Decoder(SweepReply)
#: Deliveries per page with payloads; the server's limit. The cursor continues after it.
_PAYLOAD_PAGE: Final = 100


class Replaying(Scope):
    """The verbs that work on many deliveries."""

    async def route(self, queue: str, limit: int = ROUTE_BATCH) -> RouteReply:
        """Catch a queue up by at most ``limit`` log entries."""
        check_queue_name(queue)
        check_count("limit", limit, BULK_LIMIT)
        body = encode_msgpack(RouteBody(limit))
        path = f"/v1/queues/{queue}/routes"
        return read(_ROUTED, await self._send("POST", path, body, timeout_ms=self._bulk_ms))

    async def assign(
        self,
        queue: str,
        *,
        filter: str,
        start: int,
        end: int,
        offsets: Sequence[int],
        store: StoreIdentity | None = None,
    ) -> RouteReply:
        """Catch a queue up by ``[start, end)``; it may take only the entries in ``offsets``."""
        check_queue_name(queue)
        check_assignment(filter, start, end, offsets)
        named = [Offset(offset) for offset in offsets]
        known = None if store is None else check_identity(store)
        body = encode_msgpack(AssignBody(filter, Offset(start), Offset(end), named, known))
        path = f"/v1/queues/{queue}/assignments"
        return read(_ROUTED, await self._send("POST", path, body, timeout_ms=self._bulk_ms))

    async def replay(
        self,
        queue: str,
        source: ReplaySource | str = ReplaySource.FAILED,
        *,
        where: str | None = None,
        ids: Sequence[int] | None = None,
        limit: int = BULK_LIMIT,
        rate: int | None = None,
        dry_run: bool = False,
        replay_id: str | None = None,
        ttl_ms: Duration | None = None,
    ) -> ReplayReply:
        """Make deliveries available again, with attempts 0, at their old position."""
        check_queue_name(queue)
        ttl_ms = to_ms(ttl_ms)
        source = check_replay(source, limit, rate, replay_id, ttl_ms)
        check_ids(ids)
        named = None if ids is None else tuple(ids)
        body = ReplayBody(
            source, check_filter(where), limit, rate, dry_run, replay_id, named, ttl_ms
        )
        answer = await self._send(
            "POST",
            f"/v1/queues/{queue}/replays",
            encode_msgpack(body),
            repeatable=dry_run or replay_id is not None,
            timeout_ms=self._bulk_ms,
        )
        return read(_REPLAYED, answer)

    async def purge(
        self,
        queue: str,
        state: State | str,
        *,
        where: str | None = None,
        ids: Sequence[int] | None = None,
        limit: int = BULK_LIMIT,
    ) -> PurgeReply:
        """Remove deliveries in one state for good."""
        check_queue_name(queue)
        check_count("limit", limit, BULK_LIMIT)
        check_ids(ids)
        named = None if ids is None else tuple(ids)
        body = PurgeBody(to_state(state), check_filter(where), limit, named)
        answer = await self._send(
            "POST",
            f"/v1/queues/{queue}/purges",
            encode_msgpack(body),
            repeatable=False,
            timeout_ms=self._bulk_ms,
        )
        return read(_PURGED, answer)

    async def cancel(self, message_id: int, *, queue: str | None = None) -> CancelReply:
        """Remove the delivery of a message, in any state, from one queue or from every queue."""
        path = f"/v1/messages/{to_message_id(message_id)}"
        query = () if queue is None else (("queue", check_queue_name(queue)),)
        return read(_CANCELLED, await self._send("DELETE", path, query=query, repeatable=False))

    async def peek(
        self,
        queue: str,
        state: State | str = State.AVAILABLE,
        *,
        where: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        payloads: bool = False,
    ) -> Page:
        """Browse deliveries in one state, consuming nothing."""
        check_queue_name(queue)
        check_count("limit", limit, MAX_PAGE)
        if cursor is not None and not isinstance(cursor, str):
            raise BadInput("cursor must be one that a previous page returned.", field="cursor")
        query = (
            ("state", to_state(state).value),
            ("where", check_filter(where)),
            ("limit", min(limit, _PAYLOAD_PAGE) if payloads else limit),
            ("cursor", cursor),
            ("payloads", payloads or None),
        )
        path = f"/v1/queues/{queue}/deliveries"
        return await self._get(_PAGE, path, query, timeout_ms=self._bulk_ms)

    async def sweep(self, limit: int = 10_000) -> SweepReply:
        """Apply the passage of time to every queue, and remove what retention allows."""
        check_count("limit", limit, BULK_LIMIT)
        body = encode_msgpack(SweepBody(limit))
        return read(_SWEPT, await self._send("POST", "/v1/sweeps", body, timeout_ms=self._bulk_ms))

    async def archived(self, through: int, store: StoreIdentity) -> None:
        """Report to retention that everything up to ``through`` has a verified copy (A1)."""
        body = ArchivedBody(check_offset("through", through), check_identity(store))
        await self._send("POST", "/v1/log/archived", encode_msgpack(body))


def check_filter(where: str | None) -> str | None:
    """Refuse a filter that cannot be sent; the server checks the rest."""
    if where is not None and not is_sendable(where):
        to_where(where)
    return where


def is_sendable(filter: object) -> bool:
    """Whether this can be sent as a filter: printable text within the length limit."""
    return isinstance(filter, str) and filter.isprintable() and len(filter) <= MAX_FILTER_BYTES
