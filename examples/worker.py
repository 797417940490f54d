"""A small worker: it charges orders, some only at the second attempt, and mails receipts.

It runs on its own store and stops when everything is done; with a URL it works for a
server until it is stopped::

    python examples/worker.py
    python examples/worker.py http://localhost:8080
"""

from __future__ import annotations

import asyncio
import logging
import sys

import msgspec

import penstock
from penstock.worker import App, Context

ORDERS = 6


class Order(msgspec.Struct):
    """The payload of an order."""

    id: int
    amount: int


def build(where: str | penstock.Broker) -> App:
    """Build the app, on a server or on an open store."""
    app = App(where)

    @app.worker("billing", filter="topic = 'orders'", max_attempts=3)
    async def charge(order: Order, context: Context) -> str:
        if order.amount > 1000:
            raise penstock.Reject(f"no card covers {order.amount}")
        if order.id % 3 == 0 and context.attempts == 1:
            raise penstock.Retry("the bank is busy", delay_ms=200)
        # Published with the ack: there is a receipt if and only if the order was charged.
        context.publish("receipts", order, headers={"attempts": context.attempts})
        return f"charged {order.amount}"

    @app.worker("mail", filter="topic = 'receipts'", concurrency=2)
    def send(order: Order, context: Context) -> None:
        # A plain function: it runs in a thread and may block.
        print(f"receipt for order {order.id}, charged at attempt {context.headers['attempts']}")

    return app


async def demo() -> None:
    """Publish some orders, work until all are settled, and print the results."""
    async with penstock.open("memory://") as q:
        app = build(q)
        await app.prepare(q)
        work = asyncio.create_task(app.run())
        ids = []
        for number in range(ORDERS):
            amount = 5000 if number == 4 else 100 + number
            ids.append((await q.publish("orders", Order(number, amount))).id)
        for number, message_id in enumerate(ids):
            result = await q.result("billing", message_id, wait_ms=1_000)
            if result is not None and result.result is not None:
                print(f"order {number}: {result.result.decode()}")
            else:
                print(f"order {number}: {await q.explain('billing', message_id)}")
        while (await q.stats("mail")).depth:  # noqa: ASYNC110  (there is no event for empty)
            await asyncio.sleep(0.05)
        app.stop()
        await work
        billing, mail = await q.stats("billing"), await q.stats("mail")
        print(f"billing: {billing.done} done, {billing.failed} failed; mail: {mail.done} done")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        build(sys.argv[1]).main()
    else:
        logging.basicConfig(level=logging.ERROR)
        asyncio.run(demo())
