"""The broker's part of webhooks: validated subscriptions, and a queue for the events of each.

A webhook is a document of the engine, named by its tenant and id. Its events wait in a queue of its
own, ``penstock.webhook.<id>``, whose filter selects them from the topic ``penstock.events``. The
queues that it watches publish them there (``events`` of their policies). A keeper makes the calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from msgspec.structs import asdict, replace

from penstock.broker.queues import new_policy
from penstock.broker.webhook_events import (
    WEBHOOK_KIND,
    StoredWebhook,
    WebhookEvents,
    decode_webhook,
)
from penstock.errors import Conflict, UnknownQueue, UnknownWebhook
from penstock.model.limits import shown
from penstock.model.message import Published
from penstock.model.queue import Start
from penstock.model.queue_events import EVENTS_TOPIC, queue_event
from penstock.model.webhooks import (
    MAX_WEBHOOKS,
    TEST,
    NewWebhook,
    Webhook,
    check_webhook,
    check_webhook_id,
    filter_of,
    is_one_queue,
    new_secret,
    queue_policy,
    to_secret,
    watches,
    webhook_of,
    webhook_queue,
)

__all__ = ["STATE_KIND", "Webhooks"]

#: What a keeper has last seen of a queue that a webhook watches. Named by tenant and webhook, and
#: by the queue if the webhook names a pattern.
STATE_KIND: Final = "webhook-state"
_NEW_SECRET_BYTES: Final = 32

_encode: Final = msgspec.json.Encoder().encode


class Webhooks(WebhookEvents):
    """The verbs on webhooks."""

    async def put_webhook(
        self,
        id: str,
        url: str,
        *,
        queue: str,
        events: Sequence[str],
        threshold: int | None = None,
        headers: Mapping[str, str] | None = None,
        description: str = "",
        enabled: bool = True,
        secret: str | None = None,
    ) -> NewWebhook:
        """Create a webhook, or replace the one of that id.

        The reply has the secret if the webhook is new and none was given. A replaced webhook keeps
        its secret unless another one is given.
        """
        webhook = webhook_of(id, url, queue, events, threshold, headers, description, enabled)
        check_webhook(webhook, allow_private=self._options.webhooks.allow_private)
        if secret is not None:
            to_secret(secret)
        async with self._policies:
            if is_one_queue(webhook):
                await self._engine.get_queue(self.tenant, queue)
            known = await self._find_webhook(id)
            if known is None:
                await self._check_room()
            kept = known.secret if known is not None else None
            made = None if secret or kept else self._options.engine.random(_NEW_SECRET_BYTES)
            created_at = self._clock.now() if known is None else known.created_at
            stored = StoredWebhook(
                **asdict(replace(webhook, created_at=created_at)),
                secret=secret or kept or new_secret(made or b""),
            )
            await self._put_webhook_queue(stored)
            if known is not None:
                await self._keep_added(known)
            # The document comes before the policies: from then on no other call drops the events.
            await self._engine.put_document(WEBHOOK_KIND, self._webhook_name(id), _encode(stored))
            if known is not None and known.queue != queue:
                await self._forget_states(id)
            await self._adjust_events(await self._watched(stored, known))
        self._webhooks_changed()
        return NewWebhook(stored.shown(), stored.secret if made else None)

    async def webhook(self, id: str) -> Webhook:
        """The webhook, without its secret."""
        return (await self._get_webhook(check_webhook_id(id))).shown()

    async def webhooks(self) -> tuple[Webhook, ...]:
        """All webhooks by id, without their secrets."""
        return tuple(item.shown() for item in await self._all_webhooks())

    async def delete_webhook(self, id: str) -> None:
        """Remove a webhook, with the events that it has not delivered and its dead letters."""
        webhook = await self._get_webhook(check_webhook_id(id))
        name = self._webhook_name(id)
        async with self._policies:
            await self._keep_added(webhook)
            await self._engine.delete_document(WEBHOOK_KIND, name)
            await self._forget_states(id)
            with suppress(UnknownQueue):
                await self._delete(webhook_queue(id))
            await self._adjust_events(await self._watched(webhook))
        self._webhooks_changed()

    async def test_webhook(self, id: str) -> Published:
        """Send a ``webhook.test`` event to one webhook, through its queue.

        ``result`` of the queue ``penstock.webhook.<id>`` says how the call ended.
        """
        webhook = await self._get_webhook(check_webhook_id(id))
        event = queue_event(TEST, webhook.queue, id, self._clock.now())
        reply = await self._engine.publish(self.tenant, EVENTS_TOPIC, [event])
        return reply.messages[0]

    async def _put_webhook_queue(self, webhook: Webhook) -> None:
        """Create the webhook's queue, or give the existing one its filter."""
        name, filter_ = webhook_queue(webhook.id), filter_of(webhook)
        try:
            await self._change(name, lambda policy: replace(policy, filter=filter_))
        except UnknownQueue:
            policy = new_policy({**queue_policy(), "filter": filter_}, self._default_policy)
            await self._put(name, policy, Start())

    async def _watched(self, *webhooks: Webhook | None) -> list[str]:
        """The queues that any of these webhooks watches."""
        return [
            info.name
            for info in await self._engine.list_queues(self.tenant)
            if any(webhook and watches(webhook, info.name) for webhook in webhooks)
        ]

    async def _forget_states(self, id: str) -> None:
        """Remove what was last seen of the queues that a webhook watched."""
        name = self._webhook_name(id)
        for state, _ in await self._engine.list_documents(STATE_KIND):
            if state == name or state.startswith(f"{name}/"):
                await self._engine.delete_document(STATE_KIND, state)

    async def _check_room(self) -> None:
        if len(await self._all_webhooks()) >= MAX_WEBHOOKS:
            raise Conflict(
                f"The tenant has {MAX_WEBHOOKS} webhooks; remove some.",
                field="id",
                limit=MAX_WEBHOOKS,
            )

    async def _get_webhook(self, id: str) -> StoredWebhook:
        found = await self._find_webhook(id)
        if found is None:
            raise UnknownWebhook(f"There is no webhook {shown(id)}.", field="id")
        return found

    async def _find_webhook(self, id: str) -> StoredWebhook | None:
        name = self._webhook_name(id)
        value = await self._engine.get_document(WEBHOOK_KIND, name)
        return None if value is None else decode_webhook(name, value)

    def _webhooks_changed(self) -> None:
        """Report that a keeper should read the webhooks again."""
