"""Batches single publishes that are in progress at the same time.

A call costs an engine several times as much as a message, on every engine. So messages of
one topic that are published one by one in the same turn of the event loop are passed on as
one batch. This adds no delay: the batch is sent at the end of the turn. A message that is
alone in its turn is sent by its caller, without a task.

Callers do not notice. Each message is stored or refused on its own: if the batch is
refused, its halves are retried, down to single messages.
"""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from penstock.errors import PenstockError, StoreError
from penstock.model.limits import MAX_BATCH
from penstock.model.message import Durability, NewMessage, Published, PublishReply
from penstock.model.queue import TopicPolicy
from penstock.storage.contract import Engine

__all__ = ["PublishBatcher"]

_Single: TypeAlias = tuple[NewMessage, asyncio.Future[Published]]


class PublishBatcher:
    """The single publishes of one tenant."""

    def __init__(self, engine: Engine, tenant: str) -> None:
        self._engine = engine
        self._tenant = tenant
        #: The messages that joined the first one of this turn, by topic, durability, and the id()
        #: of the policy that they were checked against.
        self._joined: dict[tuple[str, Durability, int], list[_Single]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        #: Calls that publish a message of their own, without a task.
        self._alone = 0
        #: Done when there are none left; set when ``drain`` begins, and then every call has a task.
        self._last_alone: asyncio.Future[None] | None = None

    async def publish(
        self,
        topic: str,
        message: NewMessage,
        durability: Durability,
        policy: TopicPolicy | None = None,
    ) -> Published:
        """Publish one message; ``policy`` is what it was checked against."""
        key = (topic, durability, id(policy))
        joined = self._joined.get(key)
        if joined is not None:
            future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
            joined.append((message, future))
            return await future
        joined = self._joined[key] = []
        try:
            await asyncio.sleep(0)  # Other calls of this turn may join.
        except asyncio.CancelledError:
            del self._joined[key]
            self._start(topic, joined, durability, policy)
            raise
        del self._joined[key]
        if not joined and self._last_alone is None:
            return await self._publish_alone(topic, message, durability, policy)
        future = asyncio.get_running_loop().create_future()
        self._start(topic, [(message, future), *joined], durability, policy)
        return await future

    async def drain(self) -> None:
        """Wait for the replies to all messages that were given to ``publish`` so far."""
        self._last_alone = self._last_alone or asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)  # The first callers of this turn send their batches.
        if self._alone:
            await self._last_alone
        if self._sending:
            await asyncio.wait(self._sending)

    async def _publish_alone(
        self, topic: str, message: NewMessage, durability: Durability, policy: TopicPolicy | None
    ) -> Published:
        self._alone += 1
        try:
            reply = await self._publish(topic, [message], durability, policy)
        finally:
            self._alone -= 1
            if self._last_alone is not None and not self._alone:
                self._last_alone.set_result(None)
        return reply.messages[0]

    def _start(
        self,
        topic: str,
        singles: list[_Single],
        durability: Durability,
        policy: TopicPolicy | None,
    ) -> None:
        """Send the messages in tasks of their own: no caller that is cancelled affects another."""
        loop = asyncio.get_running_loop()
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
            reply = await self._publish(topic, batch, durability, policy)
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

    async def _publish(
        self,
        topic: str,
        batch: list[NewMessage],
        durability: Durability,
        policy: TopicPolicy | None,
    ) -> PublishReply:
        """Publish a batch within the tenant's share of the store."""
        shares, cost = self._engine.shares, len(batch)
        if not shares.enter(self._tenant, cost):
            await shares.wait(self._tenant, cost)
        try:
            return await self._engine.publish(
                self._tenant, topic, batch, durability, checked={topic: policy}
            )
        finally:
            shares.leave(self._tenant, cost)


def _fail(singles: list[_Single], error: BaseException) -> None:
    for _, future in singles:
        if not future.done():
            future.set_exception(error)
