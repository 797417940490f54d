"""The verbs that lease deliveries and end leases."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from penstock.filters import Filter
from penstock.model.delivery import Delivery, Outcome, Settlement, SettleReply
from penstock.storage.abandoned_claims import AbandonedClaims
from penstock.storage.claim_selector import ClaimSelector
from penstock.storage.contract import Engine, Outgoing
from penstock.storage.copy_limit import appends
from penstock.storage.keyvalue.claim import CLAIM_TURNS, claim
from penstock.storage.keyvalue.core import Core
from penstock.storage.keyvalue.dead_letter_copies import CopyingVerbs
from penstock.storage.keyvalue.publish import owned
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.read_ahead import read_ahead
from penstock.storage.keyvalue.routed_ahead import RoutedAhead, is_quick, routed_ahead
from penstock.storage.keyvalue.settle import settle, settle_some
from penstock.storage.keyvalue.settle_and_publish import SettleAndPublish
from penstock.storage.topic_checks import CheckedBy

__all__ = ["ClaimVerbs"]

#: Payloads of claims that wait for their commit: beyond this, the next claims wait first. A server
#: counts what it was given, and cannot count what is on the way.
_UNANSWERED_BYTES: Final = 64 * 1024 * 1024
_message_size: Final = attrgetter("message.size")


class ClaimVerbs(CopyingVerbs, Engine):
    """``claim``, ``settle`` and ``settle_and_claim`` of the contract."""

    _core: Core
    _abandoned: AbandonedClaims
    _unanswered = 0

    async def claim(
        self,
        tenant: str,
        queue: str,
        consumer: str,
        limit: int,
        lease_ms: int | None,
        where: Filter | None = None,
    ) -> list[Delivery]:
        if self._changes.under_way:
            await self._changes.over()
        now = self._begin()
        while self._unanswered > _UNANSWERED_BYTES:
            await self._committer.settled()
            await asyncio.sleep(0)  # Those that were committed are answered.
            await self._changes.over()
            now = self._begin()
        turn = 1
        selector = None
        if where is not None:
            selector = ClaimSelector(where, self._turns.slice_s, self._core.log.next_offset)
        deliveries: list[Delivery] | None = None
        size = 0
        try:
            while True:
                state = self._core.tenant(tenant).queue(queue)
                if state.must_wait:
                    await self._next_committed_slice(tenant)
                    now = self.clock.now()
                    continue
                last = turn >= CLAIM_TURNS
                try:
                    deliveries = claim(
                        state, consumer, limit, lease_ms, now, last_turn=last, selector=selector
                    )
                except Exception as error:
                    raise self._broken(error) from error
                finally:
                    if self._core.stage.ended:
                        await self._append_copies()
                if deliveries is not None:
                    break
                turn += 1
                # Committed: the next turn would scan past every record that this one deleted.
                await self._next_committed_slice(tenant)
                now = self.clock.now()
            size = sum(map(_message_size, deliveries))
            self._unanswered += size
            if deliveries or self._core.stage.has_work:
                # A consumer has work to do; a producer only learns that its message is stored.
                await self._committer.commit(is_first=True)
        except asyncio.CancelledError:
            self._abandoned.release(tenant, queue, deliveries or ())
            raise
        finally:
            self._unanswered -= size
        if deliveries and len(deliveries) == limit and selector is None:
            self._expect_another(state, deliveries[-1])
        return deliveries

    def _expect_another(self, queue: Queue, last: Delivery) -> None:
        """Read ahead if the next claim probably reads payloads from a local disk, as this did."""
        if (
            self._core.adapter.durability == "fsync"
            and queue.partitions is None
            and not queue.is_dead_letter
            and not self._core.stage.recent_payloads.holds(last.message.offset)
        ):
            # After this task has sent its reply.
            asyncio.get_running_loop().call_soon(self._read_ahead, queue)

    def _read_ahead(self, queue: Queue) -> None:
        if not self._changes.under_way and not queue.deleted:
            read_ahead(queue)

    async def settle(
        self,
        tenant: str,
        queue: str,
        settlements: Sequence[Settlement],
        publish: Sequence[Outgoing] = (),
        *,
        checked: CheckedBy = None,
    ) -> SettleReply:
        if self._changes.under_way:
            settlements = tuple(settlements)
            publish = [Outgoing(item.topic, owned(item.messages)) for item in publish]
            await self._changes.over()
        now = self._begin()
        owner = self._core.tenant(tenant)
        if not publish:
            outcomes: list[Outcome] = []
            await self._settle_all(owner.queue(queue), settlements, now, outcomes)
            return SettleReply(tuple(outcomes), (), await self._committer.commit())
        while self._core.stage.copies.is_full:
            settlements = tuple(settlements)
            publish = [Outgoing(item.topic, owned(item.messages)) for item in publish]
            await self._next_committed_slice(tenant)
            now = self._begin()
        self._core.space.check(now)
        call = SettleAndPublish(self._core, owner, settlements, now, checked)
        most = self._core.inline_evaluations
        if all(is_quick(owner, item.topic, len(item.messages), most) for item in publish):
            await self._settle_and_publish(call, owner.queue(queue), publish, None)
        else:
            publish = [Outgoing(item.topic, tuple(item.messages)) for item in publish]
            async with routed_ahead(
                self.turns, self._changes, owner, publish, now, call.replaced
            ) as ahead:
                self._begin()
                await self._settle_and_publish(call, owner.queue(queue), publish, ahead)
        return replace(call.reply, durability=await self._committer.commit())

    async def _settle_all(
        self, queue: Queue, settlements: Sequence[Settlement], now: int, outcomes: list[Outcome]
    ) -> None:
        """Settle without the last commit. There are others before it if copies require it."""
        jitter, step_size = self._core.options.jitter, self._core.step_size
        if len(settlements) > step_size or appends(queue.policy):
            settlements = tuple(settlements)  # The caller may change its list.
        while len(outcomes) < len(settlements):
            if outcomes or queue.must_wait:
                await self._next_committed_slice(queue.tenant, queue)
                now = self._begin()
            rest = settlements[len(outcomes) :] if outcomes else settlements
            if len(rest) <= step_size:
                await self._settle_some(queue, rest, now, outcomes)
            else:
                settling = settle(queue, rest, now, jitter, step_size, outcomes, limited=True)
                steps = self._then_copies(settling)
                if not self._begin_change(steps):
                    await self._finish_change(steps)

    async def _settle_some(
        self, queue: Queue, settlements: Sequence[Settlement], now: int, outcomes: list[Outcome]
    ) -> None:
        """Settle in one step, without a commit, until the commit is full of copies."""
        try:
            settle_some(queue, settlements, now, self._core.options.jitter, outcomes)
        except Exception as error:
            raise self._broken(error) from error
        finally:
            if self._core.stage.ended:
                await self._append_copies()

    async def settle_and_claim(
        self,
        tenant: str,
        queue: str,
        settlements: Sequence[Settlement],
        consumer: str,
        limit: int,
        lease_ms: int | None,
    ) -> tuple[SettleReply, list[Delivery]]:
        if self._changes.under_way or len(settlements) > self._core.step_size:
            return await Engine.settle_and_claim(
                self, tenant, queue, settlements, consumer, limit, lease_ms
            )
        now = self._begin()
        outcomes: list[Outcome] = []
        await self._settle_all(self._core.tenant(tenant).queue(queue), settlements, now, outcomes)
        # The claim joins this commit, unless it must wait before it begins.
        committed = self._committer.commit()
        try:
            deliveries = await self.claim(tenant, queue, consumer, limit, lease_ms)
        except BaseException:
            committed.cancel()
            raise
        return SettleReply(tuple(outcomes), (), await committed), deliveries

    async def _settle_and_publish(
        self,
        call: SettleAndPublish,
        queue: Queue,
        publish: Sequence[Outgoing],
        ahead: RoutedAhead | None,
    ) -> None:
        steps = call.carry_out(queue, publish, ahead)
        if not self._begin_change(steps, call):
            await self._finish_change(steps, call)
