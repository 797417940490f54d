"""Catalog: the queues and topics of each tenant, cached under a version (R1).

Every change of a queue or topic raises the version of its tenant. A transaction that acts on a
cached catalog compares the version; if it differs, the catalog is read again and the transaction
starts over. So a change made by one server applies to the very next call on every other.

A migration raises every version too, and each read of a catalog compares the schema number. A
server that is older than the schema can therefore no longer write, because it would violate
rules that it does not know. Writes that need no catalog compare the schema number themselves
(``Core.check_schema``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from penstock.errors import Conflict, StoreCorrupt, StoreTooNew, StoreUnfinished, UnknownQueue
from penstock.filters import FilterIndex, parse, topic_test
from penstock.filters.index import MAX_TOPIC_PLANS
from penstock.model.decisions import dead_letter_policy
from penstock.model.limits import DLQ_SUFFIX, is_dead_letter
from penstock.model.message import Offset
from penstock.model.queue import Ordering, QueueInfo, QueuePolicy, TopicPolicy
from penstock.storage.sql.database import Row, Session
from penstock.storage.sql.migrations import UNFINISHED

__all__ = ["Catalog", "Queue", "Tenant", "encode_policy", "read_policy"]

P = TypeVar("P", QueuePolicy, TopicPolicy)

#: The stored name of ``lease_ms``: servers of older versions read and write it.
_LEASE_MS: Final = "visibility_timeout_ms"
_decode_fields: Final = msgspec.json.Decoder(dict[str, Any]).decode
_decode_topic_policy: Final = msgspec.json.Decoder(TopicPolicy).decode


class Queue(Struct, frozen=True, kw_only=True):
    """A queue as stored in the catalog."""

    number: int
    """Its key in every other table."""
    tenant: str
    name: str
    policy: QueuePolicy
    filter_version: int
    created_at: int
    cursor: Offset | None
    joining: bool
    """It is behind, but publishes already write to it (see ``route``)."""
    dead_paused: bool

    @property
    def takes_publishes(self) -> bool:
        """Whether publishes write their messages to this queue themselves."""
        return self.cursor is None or self.joining

    @property
    def ordered(self) -> bool:
        """Whether partitions are leased."""
        return self.policy.ordering is Ordering.PARTITION

    def shown_as(self, *, dead: bool) -> str:
        """The queue's name, or that of its dead letters."""
        return self.name + DLQ_SUFFIX if dead else self.name

    def paused(self, *, dead: bool) -> bool:
        """Whether claims return nothing."""
        return self.dead_paused if dead else self.policy.paused

    def info(self, *, dead: bool = False) -> QueueInfo:
        """The queue as the contract describes it; the policy of dead letters is derived."""
        policy = self.policy
        if dead:
            policy = dead_letter_policy(policy, paused=self.dead_paused)
        return QueueInfo(
            tenant=self.tenant,
            name=self.shown_as(dead=dead),
            policy=policy,
            filter_version=self.filter_version,
            created_at=self.created_at,
            cursor=None if dead else self.cursor,
        )


class Tenant:
    """One version of a tenant's catalog."""

    def __init__(
        self, number: int, name: str, version: int, queues: list[Queue], topics: dict[str, bytes]
    ) -> None:
        self.number = number
        self.name = name
        self.version = version
        self.queues = {queue.name: queue for queue in queues}
        self.numbered = {queue.number: queue for queue in queues}
        self._topics = {t: _decode(_decode_topic_policy, text) for t, text in topics.items()}
        self.index: FilterIndex[Queue] = FilterIndex()
        #: The number of filters that are evaluated for every message.
        self.unindexed = 0
        for queue in queues:
            filter_ = parse(queue.policy.filter)
            self.unindexed += not filter_.indexed
            self.index.add(queue.name, filter_, queue)
        self.all_take_publishes = all(queue.takes_publishes for queue in queues)
        self.has_message_ttls = any(q.policy.message_ttl_ms is not None for q in queues)
        #: Queues with a max_depth, each with a test of the topics it may take.
        self._bounded = [
            (queue, topic_test(parse(queue.policy.filter)))
            for queue in queues
            if queue.policy.max_depth is not None
        ]
        self._bounded_by_topic: dict[str, Sequence[Queue]] = {}

    def find(self, name: str) -> tuple[Queue, bool]:
        """The queue, and whether ``name`` denotes its dead letters."""
        dead = is_dead_letter(name)
        queue = self.queues.get(name.removesuffix(DLQ_SUFFIX) if dead else name)
        if queue is None:
            raise UnknownQueue(f"There is no queue {name!r}.", field="queue")
        return queue, dead

    def bounded_for(self, topic: str) -> Sequence[Queue]:
        """The queues with a max_depth that a message of the topic may go to."""
        if not self._bounded:
            return ()
        found = self._bounded_by_topic.get(topic)
        if found is None:
            if len(self._bounded_by_topic) >= MAX_TOPIC_PLANS:
                self._bounded_by_topic.clear()
            found = [queue for queue, takes in self._bounded if takes(topic)]
            self._bounded_by_topic[topic] = found
        return found

    def find_own(self, name: str) -> Queue:
        """The queue; dead letters are refused."""
        queue, dead = self.find(name)
        if dead:
            raise Conflict("A dead-letter queue is not routed.", field="queue")
        return queue

    def topic(self, name: str) -> TopicPolicy:
        """The topic's policy, or the default one."""
        return self._topics.get(name, _PLAIN_TOPIC)

    @property
    def topics(self) -> dict[str, TopicPolicy]:
        """The registered topics."""
        return self._topics


_PLAIN_TOPIC: Final = TopicPolicy()


class Catalog:
    """Every tenant that was requested, in the version seen last."""

    def __init__(
        self,
        reading: Callable[[Callable[[Session], Awaitable[Tenant]]], Awaitable[Tenant]],
        schema: int,
    ) -> None:
        #: The number of the newest schema that this Penstock knows.
        self._schema = schema
        #: Runs a read, and retries it after a lost connection.
        self._reading = reading
        self._tenants: dict[str, Tenant] = {}
        self._seen: dict[str, Tenant] = {}
        self._by_queue: dict[int, tuple[str, str]] = {}

    async def tenant(self, name: str) -> Tenant:
        """The tenant, cached or read from the database; created if the name is new."""
        known = self._tenants.get(name)
        return await self.reload(name) if known is None else known

    async def reload(self, name: str) -> Tenant:
        """The tenant as stored now."""
        return self.remember(await self._reading(lambda session: self._read(session, name)))

    async def _read(self, session: Session, name: str) -> Tenant:
        tenant, schema = await read_tenant(session, name)
        self.check_schema(schema)
        return tenant

    def check_schema(self, number: int) -> None:
        """Refuse a schema that is newer than this Penstock, and an unfinished copy."""
        if number == UNFINISHED:
            raise StoreUnfinished("A copy or a restore into this database has not finished.")
        if number > self._schema:
            raise StoreTooNew(
                f"The database has schema {number}; this Penstock knows schemas up to "
                f"{self._schema}."
            )

    def seen(self, name: str) -> Tenant | None:
        """The last version seen, even if it is known to be outdated; None if there is none."""
        return self._seen.get(name)

    def remember(self, tenant: Tenant) -> Tenant:
        """Cache a tenant."""
        self._tenants[tenant.name] = self._seen[tenant.name] = tenant
        for queue in tenant.queues.values():
            self._by_queue[queue.number] = (tenant.name, queue.name)
        return tenant

    def forget(self, name: str) -> None:
        """Drop the outdated catalog of a tenant."""
        self._tenants.pop(name, None)

    def forget_all(self) -> None:
        """Drop all cached catalogs: any of them may be outdated."""
        self._tenants.clear()

    def name_of(self, queue: int) -> tuple[str, str] | None:
        """Tenant and name for a queue number, if it was ever seen."""
        return self._by_queue.get(queue)


async def read_tenant(session: Session, name: str) -> tuple[Tenant, int]:
    """The tenant, created if necessary, and the schema number.

    The version is read first, so that a concurrent change is noticed.
    """
    rows = await session.fetch("find_tenant", name=name)
    if not rows:
        await session.run("make_tenant", name=name)
        rows = await session.fetch("find_tenant", name=name)
    ((number, version, schema),) = rows
    queues = [_queue(name, row) for row in await session.fetch("list_queues", tenant=number)]
    topics = {str(t): policy for t, policy in await session.fetch("list_topics", tenant=number)}
    return Tenant(number, name, version, queues, topics), schema


def _queue(tenant: str, row: Row) -> Queue:
    number, name, policy, filter_version, created_at, cursor, joining, dead_paused = row
    return Queue(
        number=number,
        tenant=tenant,
        name=name,
        policy=_decode(read_policy, policy),
        filter_version=filter_version,
        created_at=created_at,
        cursor=None if cursor is None else Offset(cursor),
        joining=cursor is not None and joining is not None,
        dead_paused=bool(dead_paused),
    )


def encode_policy(policy: QueuePolicy | TopicPolicy) -> bytes:
    """The policy as JSON, as it is stored."""
    fields = asdict(policy)
    if isinstance(policy, QueuePolicy):
        fields[_LEASE_MS] = fields.pop("lease_ms")
    return msgspec.json.encode(fields)


def read_policy(text: bytes) -> QueuePolicy:
    """The policy of a queue, from the JSON in its row."""
    fields = _decode_fields(text)
    if _LEASE_MS in fields:
        fields["lease_ms"] = fields.pop(_LEASE_MS)
    return msgspec.convert(fields, QueuePolicy)


def _decode(decode: Callable[[bytes], P], text: bytes) -> P:
    try:
        return decode(text)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"A policy in the catalog cannot be read: {error}.") from error
