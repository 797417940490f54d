"""The broker's part of webhooks: validated subscriptions, and a queue for the events of each.

A webhook is a document of the engine, named by its tenant and id. Its events wait in a queue of its
own, ``penstock.webhook.<id>``, whose filter selects them from the topic ``penstock.events``. The
queue that it watches publishes them there (``events`` of its policy). A keeper makes the calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from msgspec.structs import asdict, replace

from penstock.broker.queues import Queues, new_policy
from penstock.errors import Conflict, StoreCorrupt, UnknownQueue, UnknownWebhook
from penstock.model.limits import shown
from penstock.model.message import Published
from penstock.model.queue import IfExists, QueueInfo, QueuePolicy, Start, check_events
from penstock.model.queue_events import EVENTS_TOPIC, MessageEvent, queue_event
from penstock.model.secrets import MASK
from penstock.model.webhooks import (
    MAX_WEBHOOKS,
    TEST,
    NewWebhook,
    Webhook,
    check_webhook,
    check_webhook_id,
    filter_of,
    message_events,
    new_secret,
    queue_policy,
    to_secret,
    webhook_of,
    webhook_queue,
)

__all__ = ["STATE_KIND", "WEBHOOK_KIND", "StoredWebhook", "Webhooks", "decode_webhook"]

WEBHOOK_KIND: Final = "webhook"
#: What a keeper has last seen of the queues that webhooks watch.
STATE_KIND: Final = "webhook-state"
_NEW_SECRET_BYTES: Final = 32

_encode: Final = msgspec.json.Encoder().encode


class StoredWebhook(Webhook, frozen=True, kw_only=True):
    """The document. Fields are added, never changed: older servers read the same store."""

    secret: str
    added: tuple[MessageEvent, ...] = ()
    """The events that its queue publishes for webhooks only, and no longer without them."""

    def shown(self) -> Webhook:
        """The webhook without its secret and the values of its headers, which may be secrets."""
        fields = asdict(self)
        del fields["secret"], fields["added"]
        fields["headers"] = dict.fromkeys(self.headers, MASK)
        return Webhook(**fields)


_decoder: Final = msgspec.json.Decoder(StoredWebhook)


class Webhooks(Queues):
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
            info = await self._engine.get_queue(self.tenant, queue)
            known = await self._find_webhook(id)
            if known is None:
                await self._check_room()
            kept = known.secret if known is not None else None
            made = None if secret or kept else self._options.engine.random(_NEW_SECRET_BYTES)
            created_at = self._clock.now() if known is None else known.created_at
            stored = StoredWebhook(
                **asdict(replace(webhook, created_at=created_at)),
                secret=secret or kept or new_secret(made or b""),
                added=await self._added(webhook, info.policy),
            )
            await self._put_webhook_queue(stored)
            # The document comes before the policy: from then on no other call drops the events.
            await self._engine.put_document(WEBHOOK_KIND, self._webhook_name(id), _encode(stored))
            if known is not None:
                await self._drop_added(known)
            info = await self._engine.get_queue(self.tenant, queue)
            await self._put(queue, info.policy, Start())
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
            await self._engine.delete_document(WEBHOOK_KIND, name)
            await self._engine.delete_document(STATE_KIND, name)
            with suppress(UnknownQueue):
                await self._delete(webhook_queue(id))
            await self._drop_added(webhook)
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

    async def _put(
        self,
        name: str,
        policy: QueuePolicy,
        start: Start,
        if_exists: IfExists = IfExists.REPLACE,
        *,
        was: QueuePolicy | None = None,
    ) -> QueueInfo:
        """Store the policy, with the events that the queue's webhooks need."""
        needed = {
            event
            for webhook in await self._all_webhooks()
            if webhook.queue == name
            for event in message_events(webhook)
        }
        if not needed <= set(policy.events):
            policy = replace(policy, events=check_events((*policy.events, *needed)))
        return await super()._put(name, policy, start, if_exists, was=was)

    async def _events_set(self, name: str, policy: QueuePolicy) -> None:
        """Note in the queue's webhooks which events it reports for webhooks only."""
        prefix = self._webhook_name("")
        for document, value in await self._engine.list_documents(WEBHOOK_KIND):
            webhook = decode_webhook(document, value)
            if not document.startswith(prefix) or webhook.queue != name:
                continue
            added = check_events(tuple(message_events(webhook) - set(policy.events)))
            if added != webhook.added:
                noted = _encode(replace(webhook, added=added))
                await self._engine.add_document(WEBHOOK_KIND, document, noted, value)

    async def _drop_added(self, webhook: StoredWebhook) -> None:
        """Remove from a queue the events that it reported for the webhook that was stored before.

        ``_put`` keeps the events that webhooks need now.
        """
        with suppress(UnknownQueue):
            await self._change(webhook.queue, lambda policy: _without(policy, webhook.added))

    async def _added(self, webhook: Webhook, policy: QueuePolicy) -> tuple[MessageEvent, ...]:
        """The events that the queue has, or will have, because of webhooks only."""
        others = await self._all_webhooks()
        before = {event for one in others if one.queue == webhook.queue for event in one.added}
        own = message_events(webhook) - (set(policy.events) - before)
        return check_events(tuple(own))

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

    async def _all_webhooks(self) -> list[StoredWebhook]:
        prefix = self._webhook_name("")
        return [
            decode_webhook(name, value)
            for name, value in await self._engine.list_documents(WEBHOOK_KIND)
            if name.startswith(prefix)
        ]

    def _webhook_name(self, id: str) -> str:
        # A tenant's name has no slash, so no two tenants share a document (T1).
        return f"{self.tenant}/{id}"

    def _webhooks_changed(self) -> None:
        """Report that a keeper should read the webhooks again."""


def _without(policy: QueuePolicy, events: Sequence[MessageEvent]) -> QueuePolicy:
    kept = tuple(event for event in policy.events if event not in events)
    return replace(policy, events=kept)


def decode_webhook(name: str, value: bytes) -> StoredWebhook:
    """The stored webhook."""
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreCorrupt(f"The webhook {name} cannot be read.") from error
