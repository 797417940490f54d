"""Batches single publishes that are in progress at the same time.

A call costs an engine several times as much as a message, on every engine. So messages of
one topic that are published one by one in the same turn of the event loop are passed on as
one batch. This adds no delay: the batch is sent at the end of the turn, and a lone publish
is a batch of one.

Callers do not notice. Each message is stored or refused on its own: if the batch is
refused, its halves are retried, down to single messages.
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
        #: By topic, durability, and the id() of the policy that they were checked against.
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
        """A future of the reply; ``policy`` is what the message was checked against."""
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
        """Send the messages that are waiting, and wait for all replies."""
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
        # A caller that was cancelled by now publishes nothing.
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
