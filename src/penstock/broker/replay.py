"""The bulk verbs: route, replay, purge, peek, sweep."""

from __future__ import annotations

from typing import Final

from penstock.broker.scope import Scope, check_count, to_state, to_where
from penstock.errors import BadInput
from penstock.model.delivery import (
    Page,
    PurgeReply,
    ReplayReply,
    ReplaySource,
    RouteReply,
    SweepReply,
)
from penstock.model.limits import MAX_KEY_BYTES, MAX_PAGE, check_queue_name
from penstock.model.message import Offset
from penstock.model.states import State

__all__ = ["Replaying"]

#: Log entries that one call of ``route`` looks at.
ROUTE_BATCH: Final = 10_000
#: Deliveries that a replay or purge takes without being told a limit.
BULK_LIMIT: Final = 1_000_000


class Replaying(Scope):
    """The verbs on many deliveries at once."""

    async def route(self, queue: str, limit: int = ROUTE_BATCH) -> RouteReply:
        """Catch a queue up by at most ``limit`` log entries."""
        check_queue_name(queue)
        check_count("limit", limit, BULK_LIMIT)
        return await self._engine.route(self.tenant, queue, limit)

    async def replay(
        self,
        queue: str,
        source: ReplaySource | str = ReplaySource.FAILED,
        *,
        where: str | None = None,
        limit: int = BULK_LIMIT,
        rate: int | None = None,
        dry_run: bool = False,
        replay_id: str | None = None,
    ) -> ReplayReply:
        """Make deliveries available again, with attempts 0, at their old place."""
        check_queue_name(queue)
        check_count("limit", limit, BULK_LIMIT)
        if rate is not None:
            check_count("rate", rate, 10**9)
        if replay_id is not None:
            _check_id("replay_id", replay_id)
        try:
            source = ReplaySource(source)
        except ValueError as error:
            raise BadInput("source is failed, done or log.", field="source") from error
        return await self._engine.replay(
            self.tenant,
            queue,
            source,
            to_where(where),
            limit,
            rate=rate,
            dry_run=dry_run,
            replay_id=replay_id,
        )

    async def purge(
        self,
        queue: str,
        state: State | str,
        *,
        where: str | None = None,
        limit: int = BULK_LIMIT,
    ) -> PurgeReply:
        """Remove deliveries in one state for good."""
        check_queue_name(queue)
        check_count("limit", limit, BULK_LIMIT)
        return await self._engine.purge(self.tenant, queue, to_state(state), to_where(where), limit)

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
        if cursor is not None:
            _check_cursor(cursor)
        return await self._engine.peek(
            self.tenant, queue, to_state(state), to_where(where), limit, cursor, payloads=payloads
        )

    async def sweep(self, limit: int = 10_000) -> SweepReply:
        """Let time take effect in every queue, and retention remove what may go."""
        check_count("limit", limit, BULK_LIMIT)
        return await self._engine.sweep(limit)

    async def archived(self, through: int) -> None:
        """Tell retention that everything up to ``through`` has a verified copy (A1)."""
        if type(through) is not int or through < 0:
            raise BadInput("through is an offset.", field="through")
        await self._engine.archived(self.tenant, Offset(through))


def _check_id(field: str, value: object) -> None:
    if type(value) is not str or not value or len(value.encode(errors="replace")) > MAX_KEY_BYTES:
        raise BadInput(
            f"{field} is text of 1 to {MAX_KEY_BYTES} bytes.", field=field, limit=MAX_KEY_BYTES
        )


def _check_cursor(cursor: object) -> None:
    try:
        if type(cursor) is not str:
            raise ValueError(cursor)
        int(cursor, 16)
    except ValueError as error:
        raise BadInput("cursor is what the page before gave.", field="cursor") from error
