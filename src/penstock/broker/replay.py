"""The bulk verbs: route, assign, replay, purge, cancel, peek, sweep."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.api import BULK_LIMIT, ROUTE_BATCH
from penstock.broker.page_cursors import check_cursor, open_cursor, seal_cursor
from penstock.broker.scope import (
    Scope,
    check_assignment,
    check_count,
    check_offset,
    check_replay,
    to_message_id,
    to_selection,
    to_state,
    to_where,
)
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
from penstock.model.limits import MAX_PAGE, check_queue_name
from penstock.model.message import Offset
from penstock.model.states import State

__all__ = ["Replaying"]


class Replaying(Scope):
    """The verbs that work on many deliveries."""

    async def route(self, queue: str, limit: int = ROUTE_BATCH) -> RouteReply:
        """Catch a queue up by at most ``limit`` log entries."""
        check_queue_name(queue)
        check_count("limit", limit, BULK_LIMIT)
        return await self._engine.route(self.tenant, queue, limit)

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
        return await self._engine.assign(
            self.tenant,
            queue,
            filter=filter,
            start=Offset(start),
            end=Offset(end),
            offsets=[Offset(offset) for offset in offsets],
            store=None if store is None else check_identity(store),
        )

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
        return await self._engine.replay(
            self.tenant,
            queue,
            source,
            to_selection(where, ids),
            limit,
            rate=rate,
            dry_run=dry_run,
            replay_id=replay_id,
            ttl_ms=ttl_ms,
        )

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
        chosen = to_selection(where, ids)
        return await self._engine.purge(self.tenant, queue, to_state(state), chosen, limit)

    async def cancel(self, message_id: int, *, queue: str | None = None) -> CancelReply:
        """Remove the delivery of a message, in any state, from one queue or from every queue."""
        if queue is not None:
            check_queue_name(queue)
        return await self._engine.cancel(self.tenant, to_message_id(message_id), queue)

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
        found, chosen = to_state(state), to_where(where)
        if cursor is not None:
            check_cursor(cursor)
        # Read before the page: a cursor is never marked with an epoch later than its page.
        store = await self._engine.identity(self.tenant)
        if cursor is not None:
            cursor = open_cursor(cursor, store)
        page = await self._engine.peek(
            self.tenant, queue, found, chosen, limit, cursor, payloads=payloads
        )
        if page.cursor is None:
            return page
        return replace(page, cursor=seal_cursor(page.cursor, store))

    async def sweep(self, limit: int = 10_000) -> SweepReply:
        """Apply the passage of time to every queue, and remove what retention allows."""
        check_count("limit", limit, BULK_LIMIT)
        return await self._engine.sweep(limit)

    async def archived(self, through: int, store: StoreIdentity) -> None:
        """Report to retention that everything up to ``through`` has a verified copy (A1)."""
        offset = check_offset("through", through)
        await self._engine.archived(self.tenant, offset, check_identity(store))
