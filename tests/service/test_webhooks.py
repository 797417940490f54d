"""A webhook of a server that is killed: the event of an acknowledged ack arrives (P1)."""

from __future__ import annotations

from penstock.client import connect
from penstock.testing.laws import law
from tests.service.serving import Serve
from tests.unit.keepers.receiver import Receiver

QUEUE = "penstock.webhook.hook"


@law("P1", "S3")
async def test_the_event_of_an_acknowledged_ack_survives_a_kill(serve: Serve) -> None:
    async with Receiver() as receiver:
        first = serve("--webhook-private")
        async with connect(first.url) as q:
            await q.create_queue("orders", "topic = 'orders'")
            new = await q.put_webhook("hook", receiver.url, queue="orders", events=["message.done"])
            # The first server delivers nothing.
            await q.pause(QUEUE)
            await q.publish("orders", b"x")
            (delivery,) = await q.claim("orders")
            await q.ack(delivery)
        first.kill()
        second = serve("--webhook-private")
        async with connect(second.url) as q:
            await q.resume(QUEUE)
            (call,) = await receiver.received(1)
            assert call.event["event"] == "message.done"
            assert call.event["message_id"] == delivery.message.id
            assert call.is_signed_with(new.secret or "")
            event = int(call.headers["webhook-id"].rpartition("_")[2])
            result = await q.result(QUEUE, event, wait_ms=30_000)
            assert result is not None
            assert result.status == "done"
        metrics = second.call("GET", "/metrics").body.decode()
        assert 'penstock_webhook_calls_total{outcome="delivered"} 1.0' in metrics
