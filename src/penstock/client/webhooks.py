"""Webhooks over HTTP. Putting and deleting one sets a state, so these verbs may be retried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from penstock.client.calling import read
from penstock.client.queues import Queues
from penstock.client.scope import encoded
from penstock.errors import UnknownWebhook
from penstock.model.message import Published
from penstock.model.webhooks import (
    NewWebhook,
    Webhook,
    check_webhook,
    check_webhook_id,
    to_secret,
    webhook_of,
)
from penstock.wire.bodies import WebhookBody, WebhookList

__all__ = ["Webhooks"]

_NEW: Final = msgspec.msgpack.Decoder(NewWebhook)
_ONE: Final = msgspec.msgpack.Decoder(Webhook)
_ALL: Final = msgspec.msgpack.Decoder(WebhookList)
_PUBLISHED: Final = msgspec.msgpack.Decoder(Published)


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

        The reply has the secret if the webhook is new and none was given. If the reply is lost,
        put it again with a secret.
        """
        webhook = webhook_of(id, url, queue, events, threshold, headers, description, enabled)
        # The server knows whether private addresses are allowed.
        check_webhook(webhook, allow_private=True)
        if secret is not None:
            to_secret(secret)
        body = WebhookBody(
            url=url,
            queue=queue,
            events=list(events),
            threshold=threshold,
            headers=webhook.headers,
            description=description,
            enabled=enabled,
            secret=secret,
        )
        path = f"/v1/webhooks/{id}"
        return read(_NEW, await self._send("PUT", path, encoded(body, lambda: None)))

    async def webhook(self, id: str) -> Webhook:
        """The webhook, without its secret."""
        return await self._get(_ONE, f"/v1/webhooks/{check_webhook_id(id)}")

    async def webhooks(self) -> tuple[Webhook, ...]:
        """All webhooks by id, without their secrets."""
        return (await self._get(_ALL, "/v1/webhooks")).webhooks

    async def delete_webhook(self, id: str) -> None:
        """Remove a webhook, with the events that it has not delivered and its dead letters."""
        await self._delete(f"/v1/webhooks/{check_webhook_id(id)}", UnknownWebhook)

    async def test_webhook(self, id: str) -> Published:
        """Send a ``webhook.test`` event to one webhook, through its queue."""
        path = f"/v1/webhooks/{check_webhook_id(id)}/test"
        return read(_PUBLISHED, await self._send("POST", path, repeatable=False))
