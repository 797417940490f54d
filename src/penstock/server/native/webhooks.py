"""Webhooks of the caller's tenant (T1).

A webhook sends what happens in a queue to another place, so every verb needs ``admin:*``.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import BadInput, Conflict, TooLarge, UnknownQueue, UnknownWebhook
from penstock.model.message import Published
from penstock.model.webhooks import NewWebhook, Webhook
from penstock.server.call import Call
from penstock.server.request_parsing import Body
from penstock.server.routing import Empty, Need, Route
from penstock.wire.bodies import WebhookBody, WebhookList
from penstock.wire.codecs import JSON

__all__ = ["ROUTES"]


async def put_webhook(call: Call, query: Empty, body: WebhookBody) -> NewWebhook:  # noqa: ARG001
    """Store the webhook; the reply shows a new secret once."""
    return await call.broker.put_webhook(
        call.name,
        body.url,
        queue=body.queue,
        events=body.events,
        threshold=body.threshold,
        headers=body.headers,
        description=body.description,
        enabled=body.enabled,
        secret=body.secret,
    )


async def get_webhook(call: Call, query: Empty, body: Empty) -> Webhook:  # noqa: ARG001
    """The webhook, without its secret."""
    return await call.broker.webhook(call.name)


async def list_webhooks(call: Call, query: Empty, body: Empty) -> WebhookList:  # noqa: ARG001
    """The tenant's webhooks."""
    return WebhookList(await call.broker.webhooks())


async def delete_webhook(call: Call, query: Empty, body: Empty) -> None:  # noqa: ARG001
    """Remove the webhook, its queue and its dead letters."""
    await call.broker.delete_webhook(call.name)


async def test_webhook(call: Call, query: Empty, body: Empty) -> Published:  # noqa: ARG001
    """Publish a test event for the webhook."""
    return await call.broker.test_webhook(call.name)


_PATH: Final = "/v1/webhooks/{id}"
_ADMIN: Final = Need("admin")

ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/webhooks",
        verb="list_webhooks",
        summary="All webhooks by id, without their secrets",
        need=_ADMIN,
        handler=list_webhooks,
        query=Empty,
        replies=((JSON, WebhookList),),
        tag="webhooks",
    ),
    Route(
        method="PUT",
        path=_PATH,
        verb="put_webhook",
        summary="Create a webhook, or replace it; a new secret is shown once",
        need=_ADMIN,
        handler=put_webhook,
        query=Empty,
        body=Body(WebhookBody),
        replies=((JSON, NewWebhook),),
        errors=(BadInput, TooLarge, UnknownQueue, Conflict),
        tag="webhooks",
    ),
    Route(
        method="GET",
        path=_PATH,
        verb="get_webhook",
        summary="A webhook, without its secret",
        need=_ADMIN,
        handler=get_webhook,
        query=Empty,
        replies=((JSON, Webhook),),
        errors=(BadInput, UnknownWebhook),
        tag="webhooks",
    ),
    Route(
        method="DELETE",
        path=_PATH,
        verb="delete_webhook",
        summary="Remove a webhook, with its undelivered events and dead letters",
        need=_ADMIN,
        handler=delete_webhook,
        query=Empty,
        status=204,
        errors=(BadInput, UnknownWebhook),
        tag="webhooks",
    ),
    Route(
        method="POST",
        path=_PATH + "/test",
        verb="test_webhook",
        summary="Send a test event to one webhook",
        need=_ADMIN,
        handler=test_webhook,
        query=Empty,
        replies=((JSON, Published),),
        errors=(BadInput, UnknownWebhook),
        tag="webhooks",
    ),
)
