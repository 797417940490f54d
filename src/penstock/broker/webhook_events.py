"""Which events queues report because of webhooks, and the documents of webhooks.

The policy of a queue names the events that it reports (``events``). Webhooks add what they need.
Each queue has a note, a document, of the events that only webhooks have added. So the last of these
webhooks removes them again, and what an operator has set stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import asdict, replace

from penstock.broker.queues import Queues
from penstock.errors import StoreCorrupt, UnknownQueue
from penstock.model.queue import IfExists, QueueInfo, QueuePolicy, Start, check_events
from penstock.model.queue_events import MessageEvent
from penstock.model.secrets import MASK
from penstock.model.webhooks import Webhook, message_events, watches

__all__ = ["ADDED_KIND", "WEBHOOK_KIND", "StoredWebhook", "WebhookEvents", "decode_webhook"]

WEBHOOK_KIND: Final = "webhook"
#: The notes, named by tenant and queue.
ADDED_KIND: Final = "webhook-added"


class StoredWebhook(Webhook, frozen=True, kw_only=True):
    """The document. Fields are added, never changed: older servers read the same store."""

    secret: str
    added: tuple[MessageEvent, ...] = ()
    """The note about its queue, in documents of earlier versions."""

    def shown(self) -> Webhook:
        """The webhook without its secret and the values of its headers, which may be secrets."""
        fields = asdict(self)
        del fields["secret"], fields["added"]
        fields["headers"] = dict.fromkeys(self.headers, MASK)
        return Webhook(**fields)


_decoder: Final = msgspec.json.Decoder(StoredWebhook)
_added_decoder: Final = msgspec.json.Decoder(tuple[MessageEvent, ...])


class WebhookEvents(Queues):
    """Changes of queues, which keep the events that webhooks need."""

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
        missing = (await self._needed(name)) - set(policy.events)
        if was is not None and (new := missing - set(was.events)):
            # Before the change: a note too many is harmless, and one too few leaves events behind.
            await self._note(name, new | await self._added(name))
        is_new = if_exists is IfExists.REPLACE or not await self._exists(name)
        if missing:
            policy = replace(policy, events=check_events((*policy.events, *missing)))
        info = await super()._put(name, policy, start, if_exists, was=was)
        if was is None and is_new:
            await self._note(name, missing)
        return info

    async def _events_set(self, name: str, events: Collection[MessageEvent]) -> None:
        """Note which events the queue reports for webhooks only."""
        await self._note(name, (await self._needed(name)) - set(events))

    async def _delete(self, name: str) -> None:
        await super()._delete(name)
        await self._note(name, ())

    async def _adjust_events(self, names: Iterable[str]) -> None:
        """Let the queues report what webhooks need now, and nothing more because of webhooks."""
        webhooks = await self._all_webhooks()
        for name in names:
            with suppress(UnknownQueue):
                needed = _needed_by(webhooks, name)
                added = await self._added(name)
                policy = (await self._engine.get_queue(self.tenant, name)).policy
                if needed <= set(policy.events) and added <= needed:
                    continue
                await self._change(name, partial(_without, events=added - needed))
                await self._note(name, (await self._added(name)) & needed)

    async def _keep_added(self, webhook: StoredWebhook) -> None:
        """Store the note of an earlier version's webhook, which is about to be replaced."""
        if webhook.added and not await self._added(webhook.queue):
            await self._note(webhook.queue, webhook.added)

    async def _needed(self, name: str) -> set[MessageEvent]:
        """The events of a queue that webhooks need."""
        return _needed_by(await self._all_webhooks(), name)

    async def _added(self, name: str) -> set[MessageEvent]:
        """The events that the queue reports for webhooks only."""
        document = self._note_name(name)
        value = await self._engine.get_document(ADDED_KIND, document)
        try:
            return set() if value is None else set(_added_decoder.decode(value))
        except (msgspec.MsgspecError, ValueError) as error:
            raise StoreCorrupt(f"The note {document} cannot be read.") from error

    async def _note(self, name: str, events: Collection[MessageEvent]) -> None:
        document = self._note_name(name)
        if events:
            value = msgspec.json.encode(check_events(tuple(events)))
            await self._engine.put_document(ADDED_KIND, document, value)
        elif await self._engine.get_document(ADDED_KIND, document) is not None:
            await self._engine.delete_document(ADDED_KIND, document)

    async def _exists(self, name: str) -> bool:
        try:
            await self._engine.get_queue(self.tenant, name)
        except UnknownQueue:
            return False
        return True

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

    def _note_name(self, queue: str) -> str:
        return f"{self.tenant}/{queue}"


def _needed_by(webhooks: Iterable[Webhook], queue: str) -> set[MessageEvent]:
    return {
        event
        for webhook in webhooks
        if watches(webhook, queue)
        for event in message_events(webhook)
    }


def _without(policy: QueuePolicy, events: Collection[MessageEvent]) -> QueuePolicy:
    kept: Sequence[MessageEvent] = tuple(event for event in policy.events if event not in events)
    return replace(policy, events=kept)


def decode_webhook(name: str, value: bytes) -> StoredWebhook:
    """The stored webhook."""
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreCorrupt(f"The webhook {name} cannot be read.") from error
