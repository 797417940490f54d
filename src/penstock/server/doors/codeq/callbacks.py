"""Result webhooks of codeQ: one message per result, in the queue ``codeq.results`` of the tenant.

The commit that ends a task publishes the message, so the result of an answered submission is sent,
also after a crash (S3). The door claims these messages and posts them; the queue holds what waits
for its next attempt, and what was given up is in ``codeq.results.dlq``.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from typing import Any, Final

import msgspec

from penstock.broker import Broker
from penstock.errors import UnknownQueue
from penstock.keepers.webhook_http import CallFailed, post
from penstock.model.delivery import Ack, Delivery, Nack, Settlement
from penstock.model.message import Message, NewMessage, Outgoing
from penstock.model.webhooks import Webhook, split_url
from penstock.server.doors.background import Background
from penstock.server.doors.codeq.tasks import WEBHOOK_HEADER, command_of
from penstock.server.service import Service

__all__ = ["RESULTS", "Callbacks", "Posting", "result_message"]

#: The topic, and the queue, of results that have to be posted.
RESULTS: Final = "codeq.results"
_URL_HEADER: Final = "codeq_url"
MAX_TRIES: Final = 5
_FIRST_DELAY_MS: Final = 2_000
_MAX_DELAY_MS: Final = 60_000
#: Longer than a call and its wait for a slot.
_LEASE_MS: Final = 120_000
#: Calls in progress, and results that one pass takes.
_CONCURRENCY: Final = 32
#: How late a result is posted that another server has stored, or whose delay is over.
_EVERY_S: Final = 1.0


async def result_message(broker: Broker, task: Message, body: dict[str, Any]) -> list[Outgoing]:
    """What the commit that ends a task has to publish: nothing, if the task has no webhook."""
    url = task.headers.get(WEBHOOK_HEADER)
    if not isinstance(url, str):
        return []
    try:
        await broker.queue(RESULTS)
    except UnknownQueue:
        await broker.ensure_queue(
            RESULTS,
            f"topic = '{RESULTS}'",
            max_attempts=MAX_TRIES,
            lease_ms=_LEASE_MS,
            description="Results that the codeQ door posts to webhooks.",
        )
    named = {"taskId": body["taskId"], "eventType": command_of(task.topic), **body}
    message = NewMessage(
        msgspec.json.encode(named),
        headers={_URL_HEADER: url},
        content_type="application/json",
        auto_create=False,
    )
    return [Outgoing(RESULTS, [message])]


class Posting:
    """Posts signed bodies to URLs of callers."""

    def __init__(self, service: Service, secret: str | None) -> None:
        self._service = service
        self._secret = None if secret is None else secret.encode()
        self._options = service.broker.options.webhooks
        self._slots = asyncio.Semaphore(_CONCURRENCY)

    async def post(self, url: str, body: bytes) -> str | None:
        """Post a body; returns why it was not taken, or None."""
        headers = self.signed(body, self._service.now() // 1000)
        webhook = Webhook(id="codeq", url=url, queue=RESULTS, events=())
        async with self._slots:
            try:
                reply = await post(webhook, headers, body, self._options)
            except CallFailed as error:
                return f"{split_url(url)[0].netloc}: {error}"
        return None if reply.ok else f"{split_url(url)[0].netloc}: HTTP {reply.status}"

    def signed(self, body: bytes, at_s: int) -> dict[str, str]:
        """The headers that prove who sent a body; none without a secret."""
        if self._secret is None:
            return {}
        signed = b"%d." % at_s + body
        digest = hmac.new(self._secret, signed, hashlib.sha256).hexdigest()
        return {"x-codeq-timestamp": str(at_s), "x-codeq-signature": digest}


class Callbacks:
    """Posts the results of all tenants, while ``background`` runs."""

    def __init__(self, service: Service, posting: Posting) -> None:
        self._service = service
        self._posting = posting
        self.background = Background("codeq-results", self._run)

    async def post_due(self) -> int:
        """Post what is due, in every tenant; returns how many calls were made."""
        made = 0
        for tenant in await self._service.broker.engine.tenants():
            broker = self._service.broker.for_tenant(tenant)
            try:
                found = await broker.claim(RESULTS, limit=_CONCURRENCY, consumer="codeq")
            except UnknownQueue:
                continue
            settled = await asyncio.gather(*map(self._call, found))
            if settled:
                await broker.settle(RESULTS, settled)
            made += len(found)
        return made

    async def _call(self, delivery: Delivery) -> Settlement:
        url = delivery.message.headers.get(_URL_HEADER)
        if not isinstance(url, str):
            return Ack(delivery.receipt)
        failure = await self._posting.post(url, delivery.payload)
        if failure is None:
            return Ack(delivery.receipt)
        delay_ms = min(_FIRST_DELAY_MS << (delivery.attempts - 1), _MAX_DELAY_MS)
        return Nack(delivery.receipt, failure, delay_ms)

    async def _run(self) -> float:
        if self._service.broker.engine.role.is_standby:
            return _EVERY_S
        return 0 if await self.post_due() else _EVERY_S
