"""Gathering: single publishes that are under way at the same time become one batch.

A call costs an engine several times what a message costs it, whatever the engine is. So
messages of one topic that were published one by one in the same turn of the event loop
are handed down together. Nobody waits for it: the turn ends at once, and a lone publish is
a batch of one.

A caller sees none of this. Its message is stored or refused by itself: where the batch is
refused its halves are tried, down to each message alone.
"""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from penstock.errors import PenstockError, StoreError
from penstock.model.limits import MAX_BATCH
from penstock.model.message import Durability, NewMessage, Published
from penstock.model.queue import TopicPolicy
from penstock.storage.contract import Engine

__all__ = ["Gathering"]

_Single: TypeAlias = tuple[NewMessage, asyncio.Future[Published]]


class Gathering:
    """The single publishes of one tenant."""

    def __init__(self, engine: Engine, tenant: str) -> None:
        self._engine = engine
        self._tenant = tenant
        #: By topic, durability, and the identity of the policy that they were checked by.
        self._waiting: dict[tuple[str, Durability, int], tuple[TopicPolicy | None, list[_Single]]]
        self._waiting = {}
        self._sending: set[asyncio.Task[None]] = set()

    def publish(
        self,
        topic: str,
        message: NewMessage,
        durability: Durability,
        policy: TopicPolicy | None = None,
    ) -> asyncio.Future[Published]:
        """What to await for the reply; ``policy`` is what the message was checked by."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Published] = loop.create_future()
        key = (topic, durability, id(policy))
        group = self._waiting.get(key)
        if group is None:
            if not self._waiting:
                loop.call_soon(self._send_all, loop)
            group = self._waiting[key] = (policy, [])
        group[1].append((message, future))
        return future

    async def drain(self) -> None:
        """Send what is waiting, and wait for what was sent."""
        self._send_all(asyncio.get_running_loop())
        if self._sending:
            await asyncio.wait(self._sending)

    def _send_all(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting = self._waiting, {}
        for (topic, durability, _), (policy, singles) in waiting.items():
            for begin in range(0, len(singles), MAX_BATCH):
                part = singles[begin : begin + MAX_BATCH]
                task = loop.create_task(self._send(topic, part, durability, policy))
                # The loop itself keeps weak references only.
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)

    async def _send(
        self,
        topic: str,
        singles: list[_Single],
        durability: Durability,
        policy: TopicPolicy | None,
    ) -> None:
        # Whoever was cancelled before anything happened has published nothing.
        singles = [single for single in singles if not single[1].done()]
        if not singles:
            return
        try:
            batch = [message for message, _ in singles]
            shares, cost = self._engine.shares, len(batch)
            if not shares.enter(self._tenant, cost):
                await shares.wait(self._tenant, cost)
            try:
                reply = await self._engine.publish(
                    self._tenant, topic, batch, durability, checked={topic: policy}
                )
            finally:
                shares.leave(self._tenant, cost)
        except PenstockError as error:
            if len(singles) == 1 or isinstance(error, StoreError):
                _fail(singles, error)
                return
            middle = len(singles) // 2
            await self._send(topic, singles[:middle], durability, policy)
            await self._send(topic, singles[middle:], durability, policy)
        except BaseException as error:
            _fail(singles, error)
            raise
        else:
            for (_, future), published in zip(singles, reply.messages, strict=True):
                if not future.done():
                    future.set_result(published)


def _fail(singles: list[_Single], error: BaseException) -> None:
    for _, future in singles:
        if not future.done():
            future.set_exception(error)
