"""Claims that wait, and an engine that counts what reaches it and can hold a claim up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from penstock import Broker, Delivery
from penstock.model.limits import MAX_WAIT_MS

#: Seconds. Nothing in these tests takes time; what does not happen by then never will.
BOUND_S = 60


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until ``condition`` holds."""
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110  (whatever it is about sets no event)
            await asyncio.sleep(0)


async def calm(turns: int = 50) -> None:
    """Let whatever can run do so: with a store in memory, nothing waits for anything else."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def within(work: Awaitable[Any]) -> Any:
    """What ``work`` answers; a test that would wait for ever fails instead."""
    async with asyncio.timeout(BOUND_S):
        return await work


def resting(q: Broker, queue: str) -> int:
    """How many wait for the queue and have nothing to do."""
    line = q._waiting._queues.get((q.tenant, queue))
    return 0 if line is None else len(line._resting)


async def wait_for(
    q: Broker,
    queue: str,
    *,
    limit: int = 1,
    consumer: str = "waiting",
    lease_ms: int | None = None,
    wait_ms: int = MAX_WAIT_MS,
) -> asyncio.Task[list[Delivery]]:
    """A claim that waits, and has found nothing so far."""
    before = resting(q, queue)
    task = asyncio.create_task(
        q.claim(queue, limit=limit, consumer=consumer, lease_ms=lease_ms, wait_ms=wait_ms)
    )
    # Many a test ends with some still waiting, and the store that closes sends them home.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    await until(lambda: resting(q, queue) > before or task.done())
    assert not task.done(), task
    return task


class Watched:
    """Counts the verbs that reach the engine; holds up claims that gave something, or all."""

    def __init__(self, q: Broker) -> None:
        self.calls: Counter[str] = Counter()
        self.open = asyncio.Event()
        self.open.set()
        self.holds_all = False
        for verb in ("claim", "next_due", "get_queue", "result", "settle"):
            setattr(q.engine, verb, self._watch(verb, getattr(q.engine, verb)))

    def _watch(self, name: str, verb: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        async def watched(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            reply = await verb(*args, **kwargs)
            if name == "claim" and (reply or self.holds_all):
                await self.open.wait()
            return reply

        return watched
