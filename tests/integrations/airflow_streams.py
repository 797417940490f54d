"""What becomes of a delivery, by Airflow's own manager of shared streams.

Runs in Airflow's environment: ``airflow_streams.py URL``. Prints, per case, the counts of a queue
in which one message was published (three for the case "task"), and what is known of the first.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.triggers.shared_stream import SharedStreamManager

import penstock

ID = 1
WAIT_S = 30


class Stream:
    """A trigger in the hands of a triggerer."""

    def __init__(self, trigger: Any, manager: SharedStreamManager) -> None:
        self.manager = manager
        self.key = trigger.shared_stream_key()
        raw = manager.subscribe(trigger_id=ID, trigger=trigger, key=self.key)
        self.events = trigger.filter_shared_stream(raw)
        self.further: asyncio.Task[Any] | None = None

    async def queue_one(self) -> int:
        """Take an event, queue it for the database, and ask for the next one."""
        await anext(self.events)
        seq = self.manager.bind_pending_event(trigger_id=ID, key=self.key)
        self.further = asyncio.create_task(anext(self.events))
        await asyncio.sleep(0)
        assert seq is not None
        return seq

    async def end(self) -> None:
        if self.further is not None:
            self.further.cancel()
            await asyncio.gather(self.further, return_exceptions=True)
        await self.manager.unsubscribe(ID, self.key)


@asynccontextmanager
async def stream(
    url: str, queue: str, *, task: bool = False, **manager: Any
) -> AsyncIterator[Stream]:
    outer = MessageQueueTrigger(scheme="penstock", url=url, queue_name=queue)
    trigger = outer.trigger
    assert outer.serialize() == trigger.serialize()
    if task:
        trigger.task_instance = SimpleNamespace(task_id="wait")
    found = Stream(trigger, SharedStreamManager(**manager))
    try:
        yield found
    finally:
        await found.end()


async def stored(url: str, queue: str) -> None:
    async with stream(url, queue) as s:
        s.manager.confirm_persisted([await s.queue_one()])


async def cancelled_before_it_was_queued(url: str, queue: str) -> None:
    async with stream(url, queue) as s:
        await anext(s.events)


async def ended_before_it_was_stored(url: str, queue: str) -> None:
    async with stream(url, queue) as s:
        await s.queue_one()


async def never_stored(url: str, queue: str) -> None:
    async with stream(url, queue, ack_timeout=0.1) as s:
        await s.queue_one()
        assert s.further is not None
        await asyncio.wait([s.further], timeout=WAIT_S)


async def task(url: str, queue: str) -> None:
    async with stream(url, queue, task=True) as s:
        s.manager.confirm_persisted([await s.queue_one()])


CASES: list[Callable[[str, str], Awaitable[None]]] = [
    stored,
    cancelled_before_it_was_queued,
    ended_before_it_was_stored,
    never_stored,
    task,
]


async def main(url: str) -> None:
    found = {}
    async with penstock.connect(url) as q:
        for case in CASES:
            queue = case.__name__
            await q.create_queue(queue, f"topic = '{queue}'")
            ids = [(await q.publish(queue, {"id": 1})).id for _ in range(3 if case is task else 1)]
            await case(url, queue)
            stats = await q.stats(queue)
            (first,) = (await q.message(ids[0])).deliveries
            found[queue] = {
                "waiting": stats.available + stats.delayed,
                "done": stats.done,
                "counted": first.attempts - first.released,
                "error": first.error,
            }
    print(json.dumps(found))


asyncio.run(main(sys.argv[1]))
