"""The quickstart: a durable store on disk, one queue, publish, claim, settle.

``make run`` runs this on the embedded default. The store stays: a second run continues with it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import penstock

STORE = Path("data/quickstart")


async def main(store: Path) -> None:
    """Publish three orders; the queue takes the large ones."""
    async with penstock.open(f"rocksdb:{store}") as q:
        await q.create_queue("billing", "topic = 'orders' AND amount >= 100", max_attempts=3)
        ids = []
        for number, amount in enumerate((250, 20, 175)):
            published = await q.publish("orders", {"order": number}, headers={"amount": amount})
            ids.append(published.id)
            print(f"published order {number} (amount {amount}) as message {published.id}")

        for delivery in await q.claim("billing", limit=10, consumer="quickstart"):
            print(f"billing got {delivery.payload.decode()} (attempt {delivery.attempts})")
            await q.ack(delivery)

        stats = await q.stats("billing")
        print(f"billing: {stats.available} waiting, {stats.done} done, {stats.failed} failed")
        small = await q.explain("billing", ids[1])
        print(f"why not the small one? {small}")
    print(f"the store is in {store}; `make demo` shows more, README.md says where to read on")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else STORE))
