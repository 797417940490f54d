"""What an operation knows about its request: the call, its region, and the queues it names.

Queues are cached for a second, so that sending and receiving read no policy. A change through this
server is seen at once, one through another server within that second; SQS promises a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from penstock.errors import Forbidden
from penstock.model.clock import Clock
from penstock.model.queue import QueueInfo
from penstock.server.call import Call
from penstock.server.doors.records import Records
from penstock.server.doors.sqs.attributes import SqsQueue
from penstock.server.doors.sqs.moving import MoveTasks
from penstock.server.doors.sqs.names import (
    arn_of,
    name_of_arn,
    name_of_url,
    queue_path,
    to_penstock,
)
from penstock.server.doors.sqs.requests import required

__all__ = ["Documents", "QueueCache", "Shared", "SqsCall"]

_FRESH_MS: Final = 1_000
_MAX_CACHED: Final = 4_096


class Documents(Struct, frozen=True, omit_defaults=True):
    """What a queue has in SQS and not in its policy."""

    attributes: dict[str, str] = {}
    tags: dict[str, str] = {}
    """Tags that are not valid labels, or too many for them."""
    modified_at: int | None = None


class QueueCache:
    """The queues in use."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[SqsQueue, int]] = {}

    def get(self, tenant: str, name: str) -> SqsQueue | None:
        """The queue, if it was read a moment ago."""
        known = self._known.get((tenant, name))
        if known is None or not 0 <= self._clock.now() - known[1] < _FRESH_MS:
            return None
        return known[0]

    def put(self, tenant: str, queue: SqsQueue) -> None:
        """Remember the queue."""
        key = (tenant, queue.info.name)
        self._known.pop(key, None)
        if len(self._known) >= _MAX_CACHED:
            del self._known[next(iter(self._known))]
        self._known[key] = (queue, self._clock.now())

    def forget(self, tenant: str, name: str) -> None:
        """The queue was changed or deleted."""
        self._known.pop((tenant, name), None)


class Shared(Struct, frozen=True):
    """What the operations of all requests share."""

    queues: QueueCache
    records: Records[Documents]
    moves: MoveTasks
    new_id: Callable[[], str]
    """Returns a random id, of a request or a task."""
    base_url: str | None
    """Where callers reach the server, if that is set; otherwise the Host header says."""
    scheme: str


class SqsCall:
    """One request."""

    __slots__ = ("broker", "call", "region", "shared", "tenant")

    def __init__(self, call: Call, shared: Shared, region: str) -> None:
        self.call = call
        self.broker = call.broker
        self.tenant = call.credential.tenant
        self.shared = shared
        self.region = region

    # -- queues ------------------------------------------------------------------------

    async def queue(self, url: str | None, *actions: str) -> SqsQueue:
        """The queue of a URL, for a caller that may do one of these actions with it."""
        return await self.named(name_of_url(required(url, "QueueUrl")), *actions)

    async def queue_of_arn(self, arn: object, parameter: str, *actions: str) -> SqsQueue:
        """The same by ARN."""
        return await self.named(name_of_arn(arn, parameter), *actions)

    async def named(self, name: str, *actions: str) -> SqsQueue:
        """The same by its SQS name."""
        known = to_penstock(name)
        self.check(known, *actions)
        queue = self.shared.queues.get(self.tenant, known)
        return queue if queue is not None else await self.reread(known)

    async def reread(self, name: str) -> SqsQueue:
        """The queue as stored; raises ``UnknownQueue``."""
        self.shared.queues.forget(self.tenant, name)
        return self.remember(await self.broker.queue(name))

    def remember(self, info: QueueInfo) -> SqsQueue:
        """The queue of a policy that was just read or written."""
        queue = SqsQueue.of(info)
        self.shared.queues.put(self.tenant, queue)
        return queue

    def check(self, name: str, *actions: str) -> None:
        """Raise ``Forbidden`` unless the caller may do one of these actions with the name."""
        for action in actions[:-1]:
            if self.call.credential.allows(action, name):
                return
        self.call.check(actions[-1], name)

    def allows(self, name: str, *actions: str) -> bool:
        """Whether the caller may do one of these actions with the name."""
        try:
            self.check(name, *actions)
        except Forbidden:
            return False
        return True

    # -- how queues are shown ----------------------------------------------------------

    def url_of(self, name: str) -> str:
        """The URL of a queue by its SQS name, as this caller reaches it."""
        base = self.shared.base_url
        if base is None:
            host = self.call.headers.get(b"host", b"localhost").decode("latin-1")
            base = f"{self.shared.scheme}://{host}"
        return base.rstrip("/") + queue_path(name)

    def arn_of(self, name: str) -> str:
        """The ARN of a queue by its SQS name, in the region that the caller uses."""
        return arn_of(name, self.region)

    # -- what the policy has no field for ------------------------------------------------

    async def documents(self, queue: SqsQueue) -> Documents:
        """The record of the queue."""
        info = queue.info
        found = await self.shared.records.get(self.tenant, info.name, info.created_at)
        return Documents() if found is None else found

    async def put_documents(self, queue: SqsQueue, documents: Documents) -> None:
        """Store the record of the queue."""
        info = queue.info
        await self.shared.records.put(self.tenant, info.name, info.created_at, documents)
