"""Clients of a simulation: each runs its steps against the store that is up, and records them.

A refusal is a valid reply. Any other error is a defect, and so is ``StoreCorrupt``, which no
undamaged store raises. A call that is interrupted by a crash or cancelled by its caller has an
unknown outcome, and the history records that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from msgspec.structs import replace

from penstock.errors import (
    BadInput,
    Conflict,
    PenstockError,
    QueueFull,
    StoreCorrupt,
    UnknownQueue,
)
from penstock.model.delivery import (
    Ack,
    ClaimOrder,
    Delivery,
    Nack,
    Receipt,
    SettleAndClaimReply,
    Settlement,
    SettleReply,
    Verdict,
)
from penstock.model.message import HeaderValue, NewMessage, Outgoing, Published
from penstock.model.queue import DedupScope, Start, TopicPolicy
from penstock.testing.history import (
    Claim,
    Claimed,
    Publish,
    Refused,
    Settle,
    Settled,
    Unanswered,
    digest,
)
from penstock.testing.history import Published as PublishedEvent
from penstock.testing.simulation.bulk_steps import BulkSteps
from penstock.testing.simulation.policies import NARROW, POLICIES, TENANTS, WORK
from penstock.testing.simulation.program import Draft, Step
from penstock.testing.simulation.repeated_settles import SentSettle
from penstock.testing.simulation.settlements import asked_lease_ms, settlement
from penstock.testing.simulation.world import World, granted, judge_claim

__all__ = ["Client"]

#: The errors of a refused publish: nothing was stored.
_REFUSALS: Final = (QueueFull, BadInput, Conflict)


class Client(BulkSteps):
    """One client and its steps."""

    def __init__(self, world: World, number: int, steps: Sequence[Step]) -> None:
        super().__init__(world, number)
        self._steps = steps
        self._payloads = 0

    async def run(self) -> None:
        """Run the steps one after another, across restarts of the store."""
        for step in self._steps:
            await self._world.up.wait()
            self._world.begun += 1
            self._world.verbs[step.verb] += 1
            self._world.on_step(self._world.begun)
            name = f"client {self._number} {step.verb}"
            verb: Callable[..., Awaitable[None]] = getattr(self, step.verb)
            await self._world.call(self._answered(verb, step), name, step.cancel_after)

    async def _answered(self, verb: Callable[..., Awaitable[None]], step: Step) -> None:
        try:
            await verb(**step.arguments)
        except StoreCorrupt as error:
            self._world.violations.append(f"X1: a sound store raised {error!r}: {error.detail}")
        except PenstockError:
            return

    # -- publish -----------------------------------------------------------------------

    async def publish(
        self, tenant: str, topic: str, batch: list[Draft], durability: str, batch_id: str | None
    ) -> None:
        messages = self._messages(topic, batch)
        if topic == WORK:
            batch_id = None  # The checker does not support batch ids.

        async def publish() -> tuple[Published, ...]:
            reply = await self._broker(tenant).publish_batch(
                topic, messages, durability=durability, batch_id=batch_id
            )
            # A repeated batch stored nothing.
            return () if reply.repeated else reply.messages

        await self._publish(tenant, topic, messages, durability, publish())

    async def publish_one(
        self, tenant: str, topic: str, batch: list[Draft], durability: str, batch_id: str | None
    ) -> None:
        message = self._messages(topic, batch[:1])[0]

        async def publish() -> tuple[Published, ...]:
            reply = await self._broker(tenant).publish(
                topic,
                message.payload,
                headers=message.headers,
                id=message.id,
                key=message.key,
                partition_key=message.partition_key,
                priority=message.priority,
                delay_ms=message.delay_ms,
                ttl_ms=message.ttl_ms,
                max_attempts=message.max_attempts,
                durability=durability,
            )
            return (reply,)

        await self._publish(tenant, topic, [message], durability, publish())

    async def _publish(
        self,
        tenant: str,
        topic: str,
        messages: list[NewMessage],
        durability: str,
        publish: Awaitable[tuple[Published, ...]],
    ) -> None:
        if durability == "fsync":
            publish = self._world.names.recorded(tenant, topic, messages, publish)
        if (tenant, topic) == (TENANTS[0], NARROW) and durability == "fsync":
            promises = self._world.promises
            begun = promises.policy
            self._world.violations += promises.published(begun, messages, await publish)
            return
        if not self._is_judged(tenant, topic):
            await publish
            return
        call = self._begin_publish(messages)
        try:
            ids = tuple(item.id for item in await publish)
        except _REFUSALS:
            self._world.history.record(Refused(call=call))
            raise
        # A reply with less than fsync may be lost in a power loss: an unknown outcome.
        if durability == "fsync":
            self._world.history.record(PublishedEvent(call=call, messages=ids))

    def _begin_publish(self, messages: list[NewMessage]) -> int:
        call = self._world.history.call()
        self._world.history.record(
            Publish(
                call=call,
                payloads=tuple(digest(message.payload) for message in messages),
                ids=tuple(message.id for message in messages),
            )
        )
        return call

    def _messages(self, topic: str, batch: list[Draft]) -> list[NewMessage]:
        messages: list[NewMessage] = []
        ids: set[str] = set()
        for draft in batch:
            if topic == WORK and draft.get("id") in ids:
                continue  # The checker assumes that the messages of a batch differ.
            ids.add(draft.get("id", ""))
            messages.append(self._message(topic, draft))
        return messages

    def _message(self, topic: str, draft: Draft) -> NewMessage:
        fields = dict(draft)
        headers: dict[str, HeaderValue] = {
            name: fields.pop(name) for name in ("color", "amount") if name in fields
        }
        self._payloads += 1
        payload = f"{topic} {self._number}.{self._payloads}"
        if topic == WORK and "id" in fields:
            payload = f"{topic} id {fields['id']}"  # The same id is the same message.
        return NewMessage(payload.encode(), headers=headers, **fields)

    @staticmethod
    def _is_judged(tenant: str, topic_or_queue: str) -> bool:
        return tenant == TENANTS[0] and topic_or_queue == WORK

    # -- claim and settle --------------------------------------------------------------

    async def claim(
        self,
        tenant: str,
        queue: str,
        consumer: str,
        limit: int,
        lease_ms: int | None,
        wait_ms: int,
        where: str | None = None,
        others: Sequence[str] = (),
        order: ClaimOrder = "given",
    ) -> list[Delivery]:
        """Claim from a queue, or from several."""
        queues = list(dict.fromkeys((queue, *others)))
        with self._claiming(tenant, queues, consumer) as deliveries:
            found = await self._broker(tenant).claim(
                queues if others else queue,
                limit=limit,
                consumer=consumer,
                lease_ms=lease_ms,
                wait_ms=wait_ms,
                where=where,
                order=order,
            )
            deliveries.extend(found)
        self._world.violations += judge_claim(deliveries, queues, limit, order)
        return deliveries

    @contextmanager
    def _claiming(
        self, tenant: str, queues: Sequence[str], consumer: str
    ) -> Iterator[list[Delivery]]:
        """Record a claim of the queues. The body adds what it was granted to the list."""
        history = self._world.history
        judged = any(self._is_judged(tenant, name) for name in queues)
        call = history.call()
        if judged:
            history.record(Claim(call=call, queue=WORK))
        run = history.run
        deliveries: list[Delivery] = []
        try:
            yield deliveries
        except BaseException:
            if judged and run == history.run:
                history.record(Unanswered(call=call))
            raise
        for delivery in deliveries:
            self._world.promises.granted(tenant, delivery)
            self._world.held.append((tenant, delivery.queue, delivery.receipt))
            if self._is_judged(tenant, delivery.queue):
                history.record(granted(call, consumer, delivery))
        if judged:
            history.record(Claimed(call=call))

    async def claim_several(self, **arguments: Any) -> None:
        await self.claim(**arguments)

    async def settle(
        self,
        chosen: list[tuple[int, str, int | None]],
        topic: str | None = None,
        batch: list[Draft] | None = None,
    ) -> None:
        """Settle recent claims of any client; the first one decides which queue is called."""
        held = self._world.held
        if not held:
            return
        picked = [(held[-1 - back % len(held)], verb, ms) for back, verb, ms in chosen]
        if batch is not None:
            # All or nothing: a repeated receipt would be stale the second time.
            picked = list({place: (place, verb, ms) for place, verb, ms in picked}.values())
        tenant, queue, _ = picked[0][0]
        settlements = [settlement(verb, receipt, ms) for (_, _, receipt), verb, ms in picked]
        sent = SentSettle(tenant, queue, [place for place, _, _ in picked], settlements)
        if topic is not None and batch is not None:
            messages = self._messages(topic, batch)
            # Several at a time, as if for several topics.
            parts = (messages[:1], messages[1:])
            sent.outgoing = [Outgoing(topic, part) for part in parts if part]
            if self._is_judged(tenant, topic):
                sent.publish_call = self._begin_publish(messages)
            self._world.register(sent)
        await self._settle(sent)

    async def settle_again(self, back: int) -> None:
        """Send a settle with publish again, like a caller whose reply was lost."""
        sent = list(self._world.sent.values())
        if sent:
            await self._settle(sent[-1 - back % len(sent)])

    async def settle_late(self, verbs: Sequence[str], **claim: Any) -> None:
        """Let claims lapse, claim again, and settle with the old receipts, then with the new.

        Every settle also claims what is next.
        """
        before = await self.claim(lease_ms=20, wait_ms=0, **claim)
        await asyncio.sleep(1)
        after = await self.claim(lease_ms=5_000, wait_ms=0, **claim)
        tenant, queue = claim["tenant"], claim["queue"]
        for verb, deliveries in zip(verbs, (before, after), strict=True):
            places = [(tenant, queue, delivery.receipt) for delivery in deliveries]
            if places:
                settlements = [settlement(verb, receipt, None) for _, _, receipt in places]
                sent = SentSettle(tenant, queue, places, settlements)
                await self._settle_and_claim(sent, claim["consumer"], claim["limit"])

    async def _settle_and_claim(self, sent: SentSettle, consumer: str, limit: int) -> None:
        calls = self._begin_settle(sent.tenant, sent.queue, sent.places, sent.settlements)
        with self._claiming(sent.tenant, [sent.queue], consumer) as deliveries:
            reply = await self._broker(sent.tenant).settle_and_claim(
                sent.queue, sent.settlements, limit=limit, consumer=consumer
            )
            self._settled(calls, sent.settlements, reply)
            deliveries.extend(reply.deliveries)

    async def ack_some(self, tenant: str, queue: str, consumer: str, limit: int) -> None:
        """Claim deliveries and ack them."""
        deliveries = await self.claim(tenant, queue, consumer, limit, None, 0)
        places = [(tenant, queue, delivery.receipt) for delivery in deliveries]
        if places:
            acks = [Ack(receipt) for _, _, receipt in places]
            await self._settle(SentSettle(tenant, queue, places, acks))

    async def replay_acked(self, tenant: str, queue: str, consumer: str, limit: int) -> None:
        """Ack deliveries and replay them; the old receipts are stale from then on."""
        await self.ack_some(tenant, queue, consumer, limit)
        await self._broker(tenant).replay(queue, source="done")

    async def _settle(self, sent: SentSettle) -> None:
        calls = self._begin_settle(sent.tenant, sent.queue, sent.places, sent.settlements)
        now = self._world.clock.now
        sent.sent_at.append(now())
        try:
            reply = await self._broker(sent.tenant).settle(
                sent.queue, sent.settlements, publish=sent.outgoing
            )
        except _REFUSALS:
            if len(sent.sent_at) == 1:
                self._refuse(sent)
            raise
        self._settled(calls, sent.settlements, reply)
        if not sent.outgoing:
            return
        if not self._world.can_repeat(sent):
            if reply.published and not reply.repeated:
                self._done(sent, reply)
            elif len(sent.sent_at) == 1:
                self._refuse(sent)
            return
        was_known = sent.reply is not None
        self._world.violations += sent.answered(reply, now())
        if sent.reply is not None and not was_known:
            self._done(sent, sent.reply)
        elif sent.was_not_done(now()):
            self._refuse(sent)

    def _settled(
        self,
        calls: Sequence[int | None],
        settlements: Sequence[Settlement],
        reply: SettleReply | SettleAndClaimReply,
    ) -> None:
        """Record the outcomes."""
        for call, item, outcome in zip(calls, settlements, reply.outcomes, strict=True):
            if outcome.ok and isinstance(item, Ack):
                self._world.promises.acked(item.receipt)
            if call is not None:
                self._world.history.record(
                    Settled(
                        call=call,
                        # A repeated reply belongs to an earlier call; this call changed nothing.
                        verdict=str(Verdict.ABORTED if reply.repeated else outcome.verdict),
                        state=None if outcome.state is None else str(outcome.state),
                        until=outcome.until,
                        at=self._world.clock.now(),
                    )
                )

    def _done(self, sent: SentSettle, reply: SettleReply) -> None:
        if sent.publish_call is not None:
            ids = tuple(item.id for item in reply.published)
            self._world.history.record(PublishedEvent(call=sent.publish_call, messages=ids))

    def _refuse(self, sent: SentSettle) -> None:
        """Record a refused settle, which changed nothing. It is not sent again."""
        if self._world.can_repeat(sent) and sent.key is not None:
            del self._world.sent[sent.key]
        if sent.publish_call is not None:
            self._world.history.record(Refused(call=sent.publish_call))

    def _begin_settle(
        self,
        tenant: str,
        queue: str,
        places: list[tuple[str, str, Receipt]],
        settlements: Sequence[Settlement],
    ) -> list[int | None]:
        """Record settlements of claims on the judged queue; the others get None."""
        calls: list[int | None] = []
        for place, item in zip(places, settlements, strict=True):
            if not self._is_judged(tenant, queue) or place[:2] != (tenant, queue):
                calls.append(None)
                continue
            call = self._world.history.call()
            calls.append(call)
            self._world.history.record(
                Settle(
                    call=call,
                    receipt=item.receipt,
                    verb=type(item).__name__.lower(),
                    at=self._world.clock.now(),
                    lease_ms=asked_lease_ms(item),
                )
            )
        return calls

    async def join(self, tenant: str, queue: str, consumer: str) -> None:
        reply = await self._broker(tenant).join(queue, consumer)
        self._world.violations += self._world.promises.owned(tenant, queue, reply)

    async def leave(self, tenant: str, queue: str, consumer: str) -> None:
        await self._broker(tenant).leave(queue, consumer)

    # -- queues and topics -------------------------------------------------------------

    async def put_queue(
        self, tenant: str, queue: str, start: str, back: int, filter: str | None, **policy: Any
    ) -> None:
        broker = self._broker(tenant)
        wanted = replace(POLICIES[queue], **policy)
        if filter is not None:
            wanted = replace(wanted, filter=filter)
        value = 0
        if start == Start.OFFSET:
            value = back % (await broker.log_end() + 1)
        elif start == Start.TIME:
            value = self._world.clock.now() - back
        fields = {name: getattr(wanted, name) for name in wanted.__struct_fields__}
        await broker.put_queue(queue, fields.pop("filter"), start=Start(start, value), **fields)

    async def change_narrow(self, max_depth: int | None, filter: str) -> None:
        async with self._world.promises.changing(filter, max_depth):
            await self._broker(TENANTS[0]).update_queue(NARROW, filter=filter, max_depth=max_depth)

    async def change_ordering(self, tenant: str, queue: str, ordering: str) -> None:
        await self._broker(tenant).update_queue(queue, ordering=ordering)

    async def lower_attempts(
        self, tenant: str, queue: str, consumer: str, limit: int, max_attempts: int
    ) -> None:
        """Claim and nack with many attempts left, then lower the limit for the next claim."""
        broker = self._broker(tenant)
        await broker.update_queue(queue, max_attempts=9)
        deliveries = await broker.claim(queue, limit=limit, consumer=consumer)
        if deliveries:
            await broker.settle(queue, [Nack(d.receipt, "broken", 0) for d in deliveries])
        await broker.update_queue(queue, max_attempts=max_attempts)

    async def delete_queue(self, tenant: str, queue: str) -> None:
        await self._broker(tenant).delete_queue(queue)

    async def recreate_queue(self, tenant: str, queue: str) -> None:
        """Delete the queue and create it again, behind the whole log."""
        with suppress(UnknownQueue):
            await self._broker(tenant).delete_queue(queue)
        await self.put_queue(tenant, queue, Start.EARLIEST, 0, None)

    async def pause(self, tenant: str, queue: str, paused: bool) -> None:
        broker = self._broker(tenant)
        await (broker.pause(queue) if paused else broker.resume(queue))

    async def put_topic(
        self, tenant: str, topic: str, ttl_ms: int | None, dedup_scope: DedupScope = "topic"
    ) -> None:
        policy = TopicPolicy(default_ttl_ms=ttl_ms, dedup_scope=dedup_scope)
        await self._broker(tenant).put_topic(topic, policy)

    async def publish_fresh(self, tenant: str, defaults: int | None) -> None:
        """Publish to a topic whose queue is created by that, perhaps with new defaults."""
        broker = self._broker(tenant)
        if defaults is not None:
            await self._world.declared.set_defaults(broker, defaults)
        await self._world.declared.publish_fresh(broker)

    async def set_labels(self, labels: dict[str, str] | None) -> None:
        await self._world.declared.set_labels(self._broker(TENANTS[0]), labels)
