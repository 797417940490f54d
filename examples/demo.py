"""The demo: fifty thousand messages, five queues, workers that fail, and a replay by filter.

``make demo`` runs it on a store of its own and ends with a table in which every message
is accounted for.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Iterator

import penstock
from penstock import Ack, Broker, NewMessage, Reject, State

MESSAGES = 50_000
BATCH = 500
WORKERS = 4
COUNTRIES = ("DE", "AT", "FR", "IT", "ES")
QUEUES = {
    "billing": "topic = 'orders' AND amount >= 100",
    "germany": "topic = 'orders' AND country = 'DE'",
    "alps": "country IN ('AT', 'IT') AND amount BETWEEN 50 AND 150",
    "express": "express AND topic LIKE 'ord%'",
    "audit": "topic = 'orders'",
}


async def main() -> None:
    """Publish, work, fail, look, replay, account."""
    dice = random.Random(7)  # The same demo every time.
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        async with penstock.open(f"rocksdb:{folder}/store") as q:
            for name, text in QUEUES.items():
                await q.create_queue(name, text)
            await _publish(q, dice)
            for name in QUEUES:
                await _work(q, name, dice, failing=0.02)
            failed = (await q.stats("billing")).failed
            print(f"\nbilling has {failed} dead letters; those of Austria are replayed:")
            preview = await q.replay("billing", where="country = 'AT'", dry_run=True)
            print(f"  dry run: {preview.count} would move")
            moved = await q.replay("billing", where="country = 'AT'", replay_id="demo-1")
            again = await q.replay("billing", where="country = 'AT'", replay_id="demo-1")
            print(f"  moved {moved.count}; the same replay id again moves {again.count}")
            await _work(q, "billing", dice, failing=0.0)
            await _table(q)


async def _publish(q: Broker, dice: random.Random) -> None:
    begin = time.perf_counter()
    for done in range(0, MESSAGES, BATCH):
        await q.publish_batch("orders", [_order(dice, done + i) for i in range(BATCH)])
        _progress("publish", done + BATCH, MESSAGES)
    print(f"  {MESSAGES / (time.perf_counter() - begin):,.0f} messages a second, fsynced")


def _order(dice: random.Random, number: int) -> NewMessage:
    return NewMessage(
        b'{"order": %d}' % number,
        {
            "amount": dice.randrange(1, 300),
            "country": dice.choice(COUNTRIES),
            "express": dice.random() < 0.1,
        },
    )


async def _work(q: Broker, queue: str, dice: random.Random, failing: float) -> None:
    """A few workers claim and settle until the queue is empty."""
    total = (await q.stats(queue)).depth
    done = 0

    async def worker(name: str) -> None:
        nonlocal done
        while deliveries := await q.claim(queue, limit=200, consumer=name):
            outcomes: list[Ack | Reject] = [
                Reject(item.receipt, "card declined")
                if dice.random() < failing
                else Ack(item.receipt)
                for item in deliveries
            ]
            await q.settle(queue, outcomes)
            done += len(deliveries)
            _progress(queue, done, total)

    await asyncio.gather(*(worker(f"worker-{i}") for i in range(WORKERS)))
    print()


async def _table(q: Broker) -> None:
    states = (State.AVAILABLE, State.IN_FLIGHT, State.DONE, State.FAILED)
    print(f"\n{'queue':10}" + "".join(f"{state.value:>12}" for state in states))
    for name in QUEUES:
        stats = await q.stats(name)
        print(f"{name:10}" + "".join(f"{count:12,}" for count in _counts(stats, states)))
    end = await q.log_end()
    print(f"\nthe log holds {end:,} messages, each once, whatever queues it went to")


def _counts(stats: object, states: tuple[State, ...]) -> Iterator[int]:
    return (getattr(stats, state.value) for state in states)


def _progress(what: str, done: int, total: int) -> None:
    width = 30
    filled = width * done // max(total, 1)
    end = "\r" if sys.stdout.isatty() else ""
    if sys.stdout.isatty() or done >= total:
        bar = "█" * filled + "·" * (width - filled)
        print(f"{what:10} {bar} {done:,} of {total:,}", end=end if done < total else "", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
