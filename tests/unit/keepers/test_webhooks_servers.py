"""Webhooks of a store that two servers share: what one puts, the other reports and delivers."""

from __future__ import annotations

import pytest

import penstock
from penstock import BrokerOptions
from penstock.model.webhooks import WebhookOptions, webhook_queue
from penstock.testing.laws import law
from tests.databases import store_url
from tests.unit.keepers.receiver import Receiver

OPTIONS = BrokerOptions(webhooks=WebhookOptions(allow_private=True))


@law("S3")
@pytest.mark.parametrize(
    "dialect, queue", [("postgresql", "orders"), ("mysql", "orders"), ("postgresql", "ord*")]
)
async def test_a_webhook_of_one_server_gets_the_acks_of_another(dialect: str, queue: str) -> None:
    url = store_url(dialect)
    async with (
        Receiver() as receiver,
        penstock.open(url, options=OPTIONS, keepers=False) as first,
        penstock.open(url, options=OPTIONS) as second,
    ):
        await first.create_queue("orders", "topic = 'orders'")
        for _ in range(2):
            await second.publish("orders", b"")
        early, late = await second.claim("orders", limit=2)
        await second.ack(early)
        new = await first.put_webhook("w", receiver.url, queue=queue, events=["message.done"])
        # The second server knows the queue without events.
        await second.ack(late)
        (call,) = await receiver.received(1)
        assert call.event["message_id"] == late.message.id
        assert call.is_signed_with(new.secret or "")
        event = int(call.headers["webhook-id"].rpartition("_")[2])
        result = await first.result(webhook_queue("w"), event, wait_ms=30_000)
        assert result is not None
        assert result.status == "done"
