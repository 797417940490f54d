"""The key-value engine: the contract's verbs over the modules of this package.

A verb checks that the store still commits, reads the clock once, changes state in memory, and then
waits for the commit with its changes. Until then it runs on the event loop without interruption, or
in slices that exclude other verbs (``long_changes``).

Verbs that only read wait until what they saw is committed, so that a crash cannot revoke a reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self

from msgspec.structs import replace

from penstock.errors import BadName
from penstock.filters import Selection, parse
from penstock.filters.batch_routes import INLINE_EVALUATIONS
from penstock.model.delivery import (
    PurgeReply,
    ReplayReply,
    ReplaySource,
    RouteReply,
)
from penstock.model.identity import StoreIdentity, check_store
from penstock.model.limits import is_dead_letter
from penstock.model.message import Durability, NewMessage, Offset, PublishReply
from penstock.model.queue import (
    IfExists,
    QueueInfo,
    QueuePolicy,
    Start,
    check_unchanged,
    keeps_existing,
)
from penstock.model.states import State
from penstock.model.steady_clock import SteadyClock
from penstock.storage.abandoned_claims import AbandonedClaims
from penstock.storage.assignment import Assignment
from penstock.storage.contract import Capabilities, Engine, EngineOptions, Outgoing
from penstock.storage.keyvalue.adapters import Adapter
from penstock.storage.keyvalue.assign import Assign
from penstock.storage.keyvalue.cancel import CancelVerbs
from penstock.storage.keyvalue.claim_verbs import ClaimVerbs
from penstock.storage.keyvalue.committer import Committer
from penstock.storage.keyvalue.core import SLICE, Core
from penstock.storage.keyvalue.documents import DocumentVerbs
from penstock.storage.keyvalue.guarded import changing, reading
from penstock.storage.keyvalue.identity_verbs import IdentityVerbs
from penstock.storage.keyvalue.log import SEGMENT_ENTRIES
from penstock.storage.keyvalue.log_retention import LogRetention
from penstock.storage.keyvalue.long_changes import STEP
from penstock.storage.keyvalue.membership import MembershipVerbs
from penstock.storage.keyvalue.publish import Plan, owned
from penstock.storage.keyvalue.read_verbs import ReadingVerbs
from penstock.storage.keyvalue.recent_payloads import RECENT_BYTES
from penstock.storage.keyvalue.replay import Purge, Replay
from penstock.storage.keyvalue.route import StartCursor, route
from penstock.storage.keyvalue.routed_ahead import is_quick, routed_ahead
from penstock.storage.keyvalue.sweep import SweepVerbs
from penstock.storage.keyvalue.topic_verbs import TopicVerbs
from penstock.storage.keyvalue.writer import Writer
from penstock.storage.listener import Listener
from penstock.storage.quotas import check_filter_quota, check_queue_quota
from penstock.storage.topic_checks import CheckedBy
from penstock.storage.turns import SLICE_S

__all__ = ["KeyValueEngine"]


class KeyValueEngine(
    ReadingVerbs,
    ClaimVerbs,
    CancelVerbs,
    MembershipVerbs,
    TopicVerbs,
    SweepVerbs,
    DocumentVerbs,
    IdentityVerbs,
    Engine,
):
    """The contract over an ordered store."""

    def __init__(self, core: Core, committer: Committer) -> None:
        super().__init__(committer, core.options.clock, core.notifier, core.changes)
        self._turns.slice_s = core.slice_s
        self.turns = self._turns
        self._core = core
        self._log_retention = LogRetention(core)
        self._sweeping = asyncio.Lock()
        self._closed = False
        self._abandoned = AbandonedClaims(self)
        adapter = core.adapter
        #: A commit without sync does not survive the process, which callers of ``publish`` expect.
        self._unsynced_is_lost = adapter.unsynced == "memory"
        self.capabilities = Capabilities(
            engine=adapter.name,
            durability=adapter.durability,
            persistent=adapter.persistent,
            multi_process=False,
        )

    @classmethod
    async def open(
        cls,
        adapter: Adapter,
        options: EngineOptions,
        *,
        writer: Writer | None = None,
        slice_size: int = SLICE,
        step_size: int = STEP,
        slice_s: float = SLICE_S,
        inline_evaluations: int = INLINE_EVALUATIONS,
        segment_entries: int = SEGMENT_ENTRIES,
        recent_payload_bytes: int = RECENT_BYTES,
    ) -> Self:
        """Open the store behind ``adapter``; it is closed again if that fails.

        Without a ``writer``, batches of an ``inline`` adapter are written on the event loop, the
        others by ``DiskWriter``. Bulk verbs process ``slice_size`` deliveries before other verbs
        run. A long change checks the clock every ``step_size`` messages, and lets the loop do other
        work every ``slice_s`` seconds. A publish that takes more than ``inline_evaluations``
        evaluations of filters runs them in slices first. A segment of the log is full with
        ``segment_entries``. Up to ``recent_payload_bytes`` of the newest payloads stay in memory.
        """
        if options.clock.wall and not isinstance(options.clock, SteadyClock):
            options = replace(options, clock=SteadyClock(options.clock))
        core = Core(
            adapter,
            options,
            slice_size,
            step_size,
            slice_s,
            inline_evaluations,
            segment_entries,
            recent_payload_bytes,
        )
        try:
            core.load()
            committer = Committer(
                adapter,
                core.stage,
                core.committed,
                core.notifier,
                writer,
                core.chain,
                core.changes,
            )
            engine = cls(core, committer)
            await committer.settled()
        except BaseException:
            adapter.close()
            raise
        return engine

    @property
    def core(self) -> Core:
        """The engine's state, for copies of the whole store."""
        return self._core

    @property
    def format_version(self) -> int:
        """The format version of the store's records."""
        return self._core.format_version

    @property
    def listener(self) -> Listener:
        return self._core.notifier.listener

    @listener.setter
    def listener(self, listener: Listener) -> None:
        self._core.notifier.listener = listener

    def check(self) -> None:
        """Raise the error that verbs raise, if the store can no longer be written."""
        self._committer.check()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                await self._abandoned.close()
                await self._committer.close()
            finally:
                adapter = self._core.adapter
                if adapter.durability == "object":
                    await asyncio.to_thread(adapter.close)  # Requests may take seconds.
                else:
                    adapter.close()

    # -- queues and topics -------------------------------------------------------------

    @changing
    async def put_queue(
        self,
        tenant: str,
        name: str,
        policy: QueuePolicy,
        start: Start,
        if_exists: IfExists = IfExists.REPLACE,
        *,
        was: QueuePolicy | None = None,
    ) -> QueueInfo:
        now = self._begin()
        if is_dead_letter(name):
            raise BadName(
                f"{name!r} is a dead-letter queue; it is created with its queue.", field="queue"
            )
        owner = self._core.tenant(tenant)
        if was is not None:
            existing = owner.queues.get(name)
            check_unchanged(name, None if existing is None else existing.policy, was)
        begin = StartCursor(self._core.log, owner, start)
        while name not in owner.queues and not begin.is_found():
            await self._next_slice(tenant)
            now = self.clock.now()
        queue = owner.queues.get(name)
        if queue is None:
            limits = self._core.options.limits
            check_queue_quota(limits, len(owner.queues), name)
            check_filter_quota(limits, owner.unindexed, parse(policy.filter))
            queue = self._core.new_queue(tenant, name, now, policy)
            queue.cursor = begin.cursor
            self._core.register(queue)
        elif keeps_existing(name, queue.policy, policy, if_exists):
            await self._committer.settled()
            return queue.info
        else:
            self._core.change_policy(queue, policy)
        queue.ready()
        info = queue.info
        await self._committer.commit()
        return info

    @reading
    async def get_queue(self, tenant: str, name: str) -> QueueInfo:
        self._begin()
        info = self._core.tenant(tenant).queue(name).info
        await self._committer.settled()
        return info

    @reading
    async def list_queues(self, tenant: str) -> tuple[QueueInfo, ...]:
        self._begin()
        queues = self._core.tenant(tenant).queues
        infos = tuple(queues[name].info for name in sorted(queues))
        await self._committer.settled()
        return infos

    @changing
    async def delete_queue(self, tenant: str, name: str) -> None:
        self._begin()
        if is_dead_letter(name):
            raise BadName(f"{name!r} is deleted with its queue; purge it instead.", field="queue")
        queue = self._core.tenant(tenant).queue(name)
        self._core.unregister(queue)
        for state in (queue, queue.dead):
            if state is not None:
                state.ready()  # Waiters must notice that the queue is gone.
        await self._committer.commit()

    @changing
    async def pause(self, tenant: str, queue: str, paused: bool) -> None:
        self._begin()
        state = self._core.tenant(tenant).queue(queue)
        state.pause(paused)
        if not paused:
            state.ready()
        await self._committer.commit()

    # -- message flow ------------------------------------------------------------------

    async def publish(
        self,
        tenant: str,
        topic: str,
        messages: Sequence[NewMessage],
        durability: Durability = "fsync",
        batch_id: str | None = None,
        batch_ms: int | None = None,
        *,
        checked: CheckedBy = None,
    ) -> PublishReply:
        if self._changes.under_way:
            messages = owned(messages)
            await self._changes.over()
        now = self._begin()
        self._core.space.check(now)
        owner = self._core.tenant(tenant)
        plan = Plan(self._core, owner, now)
        steps = plan.publish(topic, batch_id, batch_ms, checked)
        most = self._core.inline_evaluations
        if is_quick(owner, topic, len(messages), most):
            plan.take((Outgoing(topic, messages),))
            if not self._begin_change(steps, plan):
                await self._finish_change(steps, plan)
        else:
            outgoing = (Outgoing(topic, tuple(messages)),)
            async with routed_ahead(
                self.turns, self._changes, owner, outgoing, now, plan.waiting_keys.replaced
            ) as ahead:
                self._begin()
                plan.take(outgoing, ahead)
                if not self._begin_change(steps, plan):
                    await self._finish_change(steps, plan)
        achieved = await self._committer.commit(
            sync=durability == "fsync" or self._unsynced_is_lost
        )
        return PublishReply(plan.replies, achieved, plan.is_repeated)

    @changing
    async def route(self, tenant: str, queue: str, limit: int) -> RouteReply:
        now = self._begin()
        owner = self._core.tenant(tenant)
        scanned = assigned = 0
        self._core.space.check_bulk(now)
        while True:
            # Each slice is atomic: its deliveries and the cursor are in one commit.
            size = min(limit - scanned, self._core.slice_size)
            reply = route(owner, owner.queue(queue), self._core.log, size, now)
            scanned, assigned = scanned + reply.scanned, assigned + reply.assigned
            if reply.cursor is None or scanned >= limit or not reply.scanned:
                break
            if self._core.space.is_used_up(self.clock.now()):
                break
            await self._next_slice(tenant)
        await self._committer.commit()
        return RouteReply(scanned, assigned, reply.cursor)

    @changing
    async def assign(
        self,
        tenant: str,
        queue: str,
        *,
        filter: str,
        start: Offset,
        end: Offset,
        offsets: Sequence[Offset],
        store: StoreIdentity | None = None,
    ) -> RouteReply:
        now = self._begin()
        owner = self._core.tenant(tenant)
        if store is not None:
            check_store(self._core.identity.of(tenant), store, "The assignment")
        self._core.space.check_bulk(now)
        work = Assign(self._core, owner, owner.queue(queue), now)
        steps = work.carry_out(Assignment(filter, start, end, offsets))
        if not self._begin_change(steps):
            await self._finish_change(steps)
        await self._committer.commit()
        return work.reply

    # -- bulk verbs --------------------------------------------------------------------

    @changing
    async def replay(
        self,
        tenant: str,
        queue: str,
        source: ReplaySource,
        where: Selection | None,
        limit: int,
        *,
        rate: int | None = None,
        dry_run: bool = False,
        replay_id: str | None = None,
        ttl_ms: int | None = None,
    ) -> ReplayReply:
        began = self._begin()
        work = Replay(
            self._core.tenant(tenant).queue(queue),
            self._core.log,
            source,
            where,
            limit,
            began=began,
            rate=rate,
            dry_run=dry_run,
            replay_id=replay_id,
            ttl_ms=ttl_ms,
            slice_size=self._core.slice_size,
        )
        while True:
            # Other verbs ran between two slices: a move must not seem older than theirs.
            now = self.clock.now()
            if not dry_run:
                self._core.space.check_bulk(now)
            if not work.run_slice(now):
                break
            await self._next_committed_slice(tenant, work.queue)
        await self._committer.commit()
        return work.reply

    @changing
    async def purge(
        self, tenant: str, queue: str, state: State, where: Selection | None, limit: int
    ) -> PurgeReply:
        self._begin()
        work = Purge(
            self._core.tenant(tenant).queue(queue), state, where, limit, self._core.slice_size
        )
        while work.run_slice():
            await self._next_committed_slice(tenant, work.queue)
        await self._committer.commit()
        return PurgeReply(work.count, work.more)
