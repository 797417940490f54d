"""Webhooks: calls the URLs, at least once per event.

The events of a webhook wait in its own queue. Servers claim them like any consumer, so a crash
between a call and its ack repeats the call, and several servers share the work. The queue's policy
decides about retries and dead letters. Calls in progress are limited per webhook and per server.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from penstock.broker import Broker, BrokerOptions
from penstock.broker.webhook_events import WEBHOOK_KIND, StoredWebhook, decode_webhook
from penstock.errors import PenstockError, StoreClosed, UnknownQueue
from penstock.keepers.keeper import Pass
from penstock.keepers.queue_watch import QueueWatch
from penstock.keepers.webhook_http import AddressRefused, CallFailed, Reply, post, signed_headers
from penstock.model.delivery import Ack, Delivery, Nack, Release, Settlement
from penstock.model.limits import MAX_WAIT_MS
from penstock.model.queue import QueuePolicy
from penstock.model.webhooks import (
    DEPTH,
    NONEMPTY,
    Webhook,
    WebhookOptions,
    is_one_queue,
    message_events,
    split_url,
    watches,
    webhook_queue,
)
from penstock.storage.contract import Engine
from penstock.storage.engine_options import not_writer

__all__ = ["WebhookCalls"]

#: How late a webhook that another server stored is noticed, and the state of a queue.
WEBHOOKS_EVERY_MS: Final = 1_000
#: The lease of an event. It covers the wait for a free slot and the longest timeout.
CALL_LEASE_MS: Final = 90_000
#: How long a claimed event waits for one of the server's slots before it is released.
SLOT_WAIT_S: Final = 20.0
#: Queues of one pattern whose counts are read in one pass; more take turns. On a database each
#: costs a few statements.
QUEUES_AT_ONCE: Final = 100
_GONE: Final = 410

_log = logging.getLogger("penstock.keepers")

Post: TypeAlias = Callable[[Webhook, Mapping[str, str], bytes, WebhookOptions], Awaitable[Reply]]


class WebhookCalls:
    """Delivers the events of all webhooks of a store, and watches their queues."""

    name: Final = "webhooks"
    every_ms: Final = WEBHOOKS_EVERY_MS

    def __init__(self, engine: Engine, options: BrokerOptions, post: Post = post) -> None:
        self._engine = engine
        self._options = options
        self._post = post
        self._brokers: dict[str, Broker] = {}
        self._lines: dict[str, _Line] = {}
        self._watch = QueueWatch(engine)
        #: By tenant, its queues in this pass, if a webhook names a pattern.
        self._queues: dict[str, dict[str, QueuePolicy]] = {}
        #: By webhook, the first queue that the next pass looks at.
        self._turns: dict[str, str] = {}
        self._slots = asyncio.Semaphore(options.webhooks.concurrency)
        #: Calls by outcome.
        self.counters: Counter[str] = Counter()

    async def run(self) -> Pass:
        """Read the webhooks, start and stop their deliveries, and look at the watched queues."""
        if self._engine.role.is_standby:
            # Reading them would open the whole store, again in each pass.
            await self.close()
            raise not_writer(self._engine.role)
        found = {
            name: decode_webhook(name, value)
            for name, value in await self._engine.list_documents(WEBHOOK_KIND)
        }
        enabled = {name: webhook for name, webhook in found.items() if webhook.enabled}
        failure: PenstockError | None = None
        for name in self._lines.keys() - enabled.keys():
            await self._lines.pop(name).stop()
        self._watch.forget(enabled)
        self._watch.begin_pass()
        self._queues.clear()
        work = 0
        for name, webhook in enabled.items():
            tenant = name.partition("/")[0]
            try:
                self._line(name, tenant).follow(webhook)
                work += await self._look(tenant, webhook)
            except StoreClosed:
                raise
            except UnknownQueue:
                continue  # Nothing to watch: the queue was deleted.
            except PenstockError as error:
                failure = error  # One webhook that fails does not block the others.
        if failure is not None:
            raise failure
        return Pass(work, more=False)

    async def close(self) -> None:
        """End the calls in progress; their events are released."""
        for line in self._lines.values():
            await line.stop()
        self._lines.clear()

    async def _look(self, tenant: str, webhook: StoredWebhook) -> int:
        """Send events about the state of queues, and make sure that they report deliveries."""
        needed = message_events(webhook)
        found = await self._watched(tenant, webhook) if needed or _has_state(webhook) else {}
        for name, policy in found.items():
            if not needed <= set(policy.events):
                # A publish created it, or it was put by a call that began before the webhook.
                with suppress(UnknownQueue):
                    await self._broker(tenant).update_queue(name)
        if not _has_state(webhook):
            return 0
        if not is_one_queue(webhook):
            await self._watch.forget_queues(tenant, webhook, found)
        return await self._watch.look(tenant, webhook, self._take_turns(tenant, webhook, found))

    async def _watched(self, tenant: str, webhook: Webhook) -> dict[str, QueuePolicy]:
        """The queues that the webhook watches."""
        if is_one_queue(webhook):
            info = await self._engine.get_queue(tenant, webhook.queue)
            return {info.name: info.policy}
        if tenant not in self._queues:
            listed = await self._engine.list_queues(tenant)
            self._queues[tenant] = {info.name: info.policy for info in listed}
        queues = self._queues[tenant]
        return {name: policy for name, policy in queues.items() if watches(webhook, name)}

    def _take_turns(self, tenant: str, webhook: Webhook, queues: Iterable[str]) -> list[str]:
        """The queues to look at in this pass."""
        names = sorted(queues)
        webhook_name = f"{tenant}/{webhook.id}"
        start = bisect_left(names, self._turns.pop(webhook_name, ""))
        if start + QUEUES_AT_ONCE < len(names):
            self._turns[webhook_name] = names[start + QUEUES_AT_ONCE]
        return names[start : start + QUEUES_AT_ONCE]

    def _line(self, name: str, tenant: str) -> _Line:
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line(self, self._broker(tenant), name)
        return line

    def _broker(self, tenant: str) -> Broker:
        broker = self._brokers.get(tenant)
        if broker is None:
            broker = self._brokers[tenant] = Broker(self._engine, self._options, tenant)
        return broker

    async def call(self, tenant: str, webhook: StoredWebhook, delivery: Delivery) -> Settlement:
        """Make one call; returns how to settle the event."""
        receipt = delivery.receipt
        try:
            async with asyncio.timeout(SLOT_WAIT_S):
                await self._slots.acquire()
        except TimeoutError:
            return Release(receipt)
        try:
            event_id = f"evt_{tenant}_{delivery.message.id}"
            at_s = self._engine.clock.now() // 1000
            headers = signed_headers(webhook.secret, event_id, at_s, delivery.payload)
            reply = await self._post(webhook, headers, delivery.payload, self._options.webhooks)
        except CallFailed as error:
            refused = isinstance(error, AddressRefused)
            self.counters["refused" if refused else "failed"] += 1
            return Nack(receipt, f"{_host(webhook)}: {error}")
        finally:
            self._slots.release()
        if reply.ok:
            self.counters["delivered"] += 1
            return Ack(receipt)
        if reply.status == _GONE:
            self.counters["gone"] += 1
            await self._disable(tenant, webhook)
            raise _ReceiverGone
        self.counters["failed"] += 1
        delay_ms = None
        if reply.retry_after_ms is not None:
            # The longer one: a receiver that says "soon" each time must not use up all attempts.
            info = await self._engine.get_queue(tenant, delivery.queue)
            backoff_ms = info.policy.backoff.ceiling_ms(delivery.attempts)
            jitter = self._options.engine.jitter
            delay_ms = max(reply.retry_after_ms, jitter(backoff_ms))
        return Nack(receipt, f"{_host(webhook)}: HTTP {reply.status}", delay_ms)

    async def _disable(self, tenant: str, webhook: StoredWebhook) -> None:
        """Stop calling a receiver that is gone, unless the webhook was changed meanwhile."""
        name = f"{tenant}/{webhook.id}"
        disabled = replace(webhook, enabled=False, disabled_because="The receiver answered 410.")
        encode = msgspec.json.encode
        known = await self._engine.get_document(WEBHOOK_KIND, name)
        if known is not None and decode_webhook(name, known) == webhook:
            await self._engine.add_document(WEBHOOK_KIND, name, encode(disabled), known)
            _log.warning("The webhook %s is disabled: its receiver answered 410.", name)


def _has_state(webhook: Webhook) -> bool:
    """Whether it has events about the state of a queue."""
    return not {NONEMPTY, DEPTH}.isdisjoint(webhook.events)


def _host(webhook: Webhook) -> str:
    """The host, for errors. The rest of the URL may contain secrets."""
    return split_url(webhook.url)[0].netloc


class _ReceiverGone(Exception):
    """The receiver answered 410: it must not be called again."""


class _Line:
    """The deliveries of one webhook: claims its events and calls it, a few at a time."""

    def __init__(self, keeper: WebhookCalls, broker: Broker, name: str) -> None:
        self._keeper = keeper
        self._broker = broker
        self._name = name
        self._webhook: StoredWebhook | None = None
        self._task: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[None]] = set()

    def follow(self, webhook: StoredWebhook) -> None:
        """Deliver for the webhook as it is now; raises the error that ended the deliveries."""
        self._webhook = webhook
        ended = self._task
        if ended is not None and not ended.done():
            return
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(), name=f"penstock-webhook-{self._name}")
        if ended is not None and not ended.cancelled() and (error := ended.exception()):
            raise error

    async def stop(self) -> None:
        """Cancel the deliveries in progress."""
        tasks = [task for task in (self._task, *self._calls) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        assert self._webhook is not None
        queue = webhook_queue(self._webhook.id)
        most = self._broker.options.webhooks.webhook_concurrency
        while True:
            if len(self._calls) >= most:
                await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
                continue
            try:
                deliveries = await self._broker.claim(
                    queue,
                    limit=most - len(self._calls),
                    consumer="penstock.webhooks",
                    lease_ms=CALL_LEASE_MS,
                    wait_ms=MAX_WAIT_MS,
                )
            except StoreClosed:
                return
            for delivery in deliveries:
                call = asyncio.get_running_loop().create_task(self._deliver(delivery))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)

    async def _deliver(self, delivery: Delivery) -> None:
        assert self._webhook is not None
        tenant, webhook = self._broker.tenant, self._webhook
        settlement: Settlement = Release(delivery.receipt)
        try:
            settlement = await self._keeper.call(tenant, webhook, delivery)
        except _ReceiverGone:
            if self._task is not None:
                self._task.cancel()  # Until a pass finds the webhook enabled.
        except Exception as error:  # noqa: BLE001  (any error: the event is retried)
            _log.error("The webhook %s could not be called.", self._name, exc_info=error)
            settlement = Nack(delivery.receipt, f"{type(error).__name__}: {error}")
        finally:
            # Also if the call was cancelled. If this fails, the lease lapses and the call is
            # repeated.
            with suppress(PenstockError):
                await self._broker.settle(delivery.queue, (settlement,))
