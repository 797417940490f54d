"""The verbs on webhooks, as a protocol: a part of ``penstock.api``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from penstock.model.message import Published
from penstock.model.webhooks import NewWebhook, Webhook

__all__ = ["WebhookApi"]


class WebhookApi(Protocol):
    """URLs that are called when something happens in a queue."""

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

        ``queue`` is a name, or a pattern in which ``*`` stands for any characters. The reply has
        the secret if the webhook is new and none was given. A replaced webhook keeps its secret
        unless another one is given. ``threshold`` is the depth of ``queue.depth``.
        """
        ...

    async def webhook(self, id: str) -> Webhook:
        """The webhook, without its secret."""
        ...

    async def webhooks(self) -> tuple[Webhook, ...]:
        """All webhooks by id, without their secrets."""
        ...

    async def delete_webhook(self, id: str) -> None:
        """Remove a webhook, with the events that it has not delivered and its dead letters."""
        ...

    async def test_webhook(self, id: str) -> Published:
        """Send a ``webhook.test`` event to one webhook, through its queue.

        ``result`` of the queue ``penstock.webhook.<id>`` says how the call ended.
        """
        ...
