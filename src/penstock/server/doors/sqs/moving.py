"""Move tasks: from a dead-letter queue back to where its messages came from, or to another queue.

A task claims messages of the source and, in one commit, acks them and publishes them to the
destination. So a task that is killed loses nothing and moves nothing twice. Progress is recorded
for the listing only. A task runs in the server that started it and ends with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.api import QueueApi
from penstock.errors import PenstockError
from penstock.model.clock import Clock
from penstock.model.delivery import Ack, Delivery, Release
from penstock.model.message import HeaderValue, NewMessage, Outgoing
from penstock.storage.document_verbs import Documents

__all__ = ["ORIGIN_HEADER", "MoveTask", "MoveTasks", "Status"]

log = logging.getLogger("penstock.server")

#: On messages that were moved back: the id of the message that was sent first.
ORIGIN_HEADER: Final = "sqs_original_message_id"
_KIND: Final = "door/sqs-moves/"
_CONSUMER: Final = "sqs"
_BATCH: Final = 100
_LEASE_MS: Final = 60_000
#: Between two records of the progress, and how old one may be of a task that runs.
_RECORD_MS: Final = 5_000
_DEAD_MS: Final = 60_000
#: SQS lists the newest ten.
_KEPT: Final = 10
_STORY: Final = "dead_letter_"


class Status:
    """What a task does, in the words of SQS."""

    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"


class MoveTask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One task, as it was recorded last."""

    id: str
    source: str
    """The Penstock name of the dead-letter queue."""
    destination: str | None
    """None: each message goes back to its own queue."""
    homes: tuple[str, ...]
    """The queues that messages may go back to."""
    rate: int | None
    """Messages per second."""
    started_at: int
    to_move: int
    moved: int = 0
    status: str = Status.RUNNING
    failure: str | None = None
    recorded_at: int = 0


class MoveTasks:
    """The tasks of this server, and the records of all."""

    def __init__(self, store: Documents, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._running: dict[tuple[str, str], _Running] = {}

    async def start(self, tenant: str, broker: QueueApi, task: MoveTask) -> None:
        """Record the task and begin it."""
        task = replace(task, recorded_at=self._clock.now())
        await self._record(tenant, task)
        await self._forget_old(tenant, task.source)
        running = _Running(task)
        self._running[tenant, task.id] = running
        running.work = asyncio.create_task(self._run(tenant, broker, running))

    async def cancel(self, tenant: str, task_id: str) -> MoveTask | None:
        """Stop a task that runs in this server; None if there is none."""
        running = self._running.get((tenant, task_id))
        if running is None:
            return None
        running.is_cancelled = True
        running.woken.set()
        assert running.work is not None
        await asyncio.shield(running.work)
        return running.task

    async def list(self, tenant: str, source: str) -> list[MoveTask]:
        """The tasks of a source, the newest first."""
        found = []
        for _, raw in await self._store.list_documents(_KIND + tenant):
            task = msgspec.json.decode(raw, type=MoveTask)
            running = self._running.get((tenant, task.id))
            if running is not None:
                task = running.task
            elif task.status == Status.RUNNING and self._is_dead(task):
                task = replace(
                    task, status=Status.FAILED, failure="The server that ran the task has ended."
                )
            if task.source == source:
                found.append(task)
        return sorted(found, key=lambda task: (-task.started_at, task.id))

    async def stop(self) -> None:
        """End every task of this server; what they have not moved stays where it is."""
        for running in tuple(self._running.values()):
            running.failure = "The server that ran the task was stopped."
            running.is_cancelled = True
            running.woken.set()
        works = [running.work for running in self._running.values() if running.work is not None]
        await asyncio.gather(*works, return_exceptions=True)

    def _is_dead(self, task: MoveTask) -> bool:
        return not 0 <= self._clock.now() - task.recorded_at < _DEAD_MS

    async def _run(self, tenant: str, broker: QueueApi, running: _Running) -> None:
        status, failure = Status.COMPLETED, None
        try:
            while not running.is_cancelled and (count := await self._move(broker, running)):
                task = replace(running.task, moved=running.task.moved + count)
                running.task = task
                if self._clock.now() - task.recorded_at >= _RECORD_MS:
                    await self._record(tenant, replace(task, recorded_at=self._clock.now()))
                if task.rate is not None:
                    await running.pause(count / task.rate)
            if running.is_cancelled:
                failure = running.failure
                status = Status.CANCELLED if failure is None else Status.FAILED
        except PenstockError as error:
            status, failure = Status.FAILED, error.detail
        except Exception:
            status, failure = Status.FAILED, "The server failed; its log has the cause."
            log.exception("A move task failed.")
        running.task = replace(
            running.task, status=status, failure=failure, recorded_at=self._clock.now()
        )
        try:
            await self._record(tenant, running.task)
        except PenstockError as error:
            log.warning("The end of a move task could not be recorded: %s", error)
        finally:
            self._running.pop((tenant, running.task.id), None)

    async def _move(self, broker: QueueApi, running: _Running) -> int:
        task = running.task
        most = _BATCH if task.rate is None else min(_BATCH, task.rate)
        claimed = await broker.claim(
            task.source, limit=most, consumer=_CONSUMER, lease_ms=_LEASE_MS
        )
        if not claimed:
            return 0
        try:
            outgoing = _outgoing(claimed, task)
            acks = [Ack(delivery.receipt) for delivery in claimed]
            reply = await broker.settle(task.source, acks, publish=outgoing)
        except PenstockError:
            await broker.settle(task.source, [Release(one.receipt) for one in claimed])
            raise
        return sum(outcome.ok for outcome in reply.outcomes)

    async def _record(self, tenant: str, task: MoveTask) -> None:
        await self._store.put_document(_KIND + tenant, task.id, msgspec.json.encode(task))

    async def _forget_old(self, tenant: str, source: str) -> None:
        for task in (await self.list(tenant, source))[_KEPT:]:
            if task.status != Status.RUNNING:
                await self._store.delete_document(_KIND + tenant, task.id)


class _Running:
    """A task in progress."""

    def __init__(self, task: MoveTask) -> None:
        self.task = task
        self.work: asyncio.Task[None] | None = None
        self.is_cancelled = False
        self.failure: str | None = None
        self.woken = asyncio.Event()

    async def pause(self, seconds: float) -> None:
        """Wait, or until the task is cancelled."""
        try:
            async with asyncio.timeout(seconds):
                await self.woken.wait()
        except TimeoutError:
            pass


def _outgoing(claimed: Sequence[Delivery], task: MoveTask) -> list[Outgoing]:
    by_topic: dict[str, list[NewMessage]] = {}
    for delivery in claimed:
        message = delivery.message
        topic = task.destination or _home(message.headers, task.homes)
        moved = NewMessage(
            delivery.payload,
            _headers(delivery),
            partition_key=message.partition_key,
            priority=message.priority,
            content_type=message.content_type,
            auto_create=False,
        )
        by_topic.setdefault(topic, []).append(moved)
    return [Outgoing(topic, messages) for topic, messages in by_topic.items()]


def _home(headers: Mapping[str, HeaderValue], homes: Sequence[str]) -> str:
    """The queue in which the message failed, which is also the topic that only it takes.

    Any producer can write the header, so it must be a queue that the caller may publish to.
    """
    queue = headers.get("dead_letter_original_queue")
    if not isinstance(queue, str) or queue not in homes:
        raise _NoHome("A message does not come from a source queue: give a DestinationArn.")
    return queue


class _NoHome(PenstockError):
    """A message has no queue to return to."""


def _headers(delivery: Delivery) -> dict[str, HeaderValue]:
    headers = delivery.message.headers
    kept = {name: value for name, value in headers.items() if not name.startswith(_STORY)}
    first = headers.get("dead_letter_message_id")
    if type(first) is int:
        kept.setdefault(ORIGIN_HEADER, first)
    return kept
