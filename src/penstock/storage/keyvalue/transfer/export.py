"""Writes the contents of a key-value store as a dump.

Reads through the engine's own structures, which verify every checksum, and loads no backlog:
deliveries are walked bucket by bucket, and their other records are read in groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Final

from msgspec.structs import replace

from penstock.errors import StoreCorrupt
from penstock.model.checksum import checksum
from penstock.model.limits import DLQ_SUFFIX
from penstock.model.message import Message
from penstock.model.states import State
from penstock.storage.copied_receipts import RECEIPT_KIND
from penstock.storage.dump import (
    BatchId,
    Consumer,
    Counters,
    Delivery,
    Document,
    DumpRecord,
    Entry,
    IdempotencyId,
    OpenKey,
    Partition,
    Position,
    QueueInfo,
    ReplayMark,
    SettleId,
    Step,
    StoreInfo,
    TenantInfo,
    TopicInfo,
)
from penstock.storage.keyvalue.core import Core
from penstock.storage.keyvalue.dedup import REMEMBERED_PREFIXES, RememberedId, remembered_id
from penstock.storage.keyvalue.encoding import unseal, untangle
from penstock.storage.keyvalue.entry import Entry as ShelfEntry
from penstock.storage.keyvalue.histories import Place, transitions
from penstock.storage.keyvalue.keys import (
    DOCUMENT_PREFIX,
    NUMBER_MASK,
    OPEN_PREFIX,
    message_id_of,
    payload_key,
    replaced_key,
)
from penstock.storage.keyvalue.metadata import decode_metadata
from penstock.storage.keyvalue.open_keys import OpenKey as OpenKeyRecord
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.tenant import Tenant
from penstock.storage.keyvalue.trail import Trail

__all__ = ["dump"]

#: Deliveries, and log entries, whose other records are read together.
_GROUP: Final = 256


def dump(core: Core) -> Iterator[DumpRecord]:
    """The contents of the store, which must not change meanwhile."""
    yield StoreInfo(core.log.next_offset)
    tenants = [core.tenants[name] for name in sorted(core.tenants)]
    for tenant in tenants:
        log = tenant.log
        archived = None if log.archived < 0 else log.archived
        yield TenantInfo(tenant.name, log.end, archived, log.trimmed)
        for topic, policy in sorted(tenant.topics.items()):
            yield TopicInfo(tenant.name, topic, policy)
        for queue in _queues(tenant):
            yield _info(queue)
    for tenant in tenants:
        yield from _positions(tenant)
    yield from _log(core, tenants)
    for tenant in tenants:
        for queue in _queues(tenant):
            yield from _membership(queue)
            yield from _deliveries(queue)
            assert queue.dead is not None
            yield from _deliveries(queue.dead)
            yield from _replay_marks(queue)
    yield from _keys(core)
    yield from _ids(core)
    yield from _documents(core)


def _queues(tenant: Tenant) -> list[Queue]:
    return [tenant.queues[name] for name in sorted(tenant.queues)]


def _info(queue: Queue) -> QueueInfo:
    dead = queue.dead
    assert dead is not None
    return QueueInfo(
        tenant=queue.tenant,
        name=queue.name,
        policy=queue.policy,
        filter_version=queue.filter_version,
        created_at=queue.created_at,
        cursor=queue.cursor,
        dead_paused=dead.paused_apart,
        epoch=queue.epoch,
        counters=_counters(queue),
        dead_counters=_counters(dead),
    )


def _counters(queue: Queue) -> Counters:
    return Counters(queue.grants, queue.acks, queue.nacks, queue.failures)


# -- the log ---------------------------------------------------------------------------


def _positions(tenant: Tenant) -> Iterator[Position]:
    drawn = {
        message_id_of(claim_id)
        for queue in tenant.queues.values()
        if queue.positions is not None
        for _, claim_id in queue.positions.all()
    }
    for number in sorted(drawn):
        yield Position(tenant.name, number)


def _log(core: Core, tenants: Sequence[Tenant]) -> Iterator[Entry]:
    """The entries of all tenants, in the order of their offsets."""
    entries = merge(*(_log_of(core, tenant.name) for tenant in tenants), key=_offset)
    while group := list(islice(entries, _GROUP)):
        offsets = [message.offset for _, message in group]
        payloads = core.stage.get_many([payload_key(offset) for offset in offsets])
        replaced = core.stage.get_many([replaced_key(message.id) for _, message in group])
        for (tenant, message), payload, newer in zip(group, payloads, replaced, strict=True):
            if payload is None or checksum(payload) != message.checksum:
                raise StoreCorrupt(f"The payload at offset {message.offset} is damaged or missing.")
            newest = newer is None or core.log.newest(message.id) == message.offset
            yield Entry(tenant, message, payload, newest)


def _log_of(core: Core, tenant: str) -> Iterator[tuple[str, Message]]:
    for message, _ in core.log.read(tenant, 0, staged=False):
        yield tenant, message


def _offset(entry: tuple[str, Message]) -> int:
    return entry[1].offset


# -- deliveries ------------------------------------------------------------------------


def _deliveries(queue: Queue) -> Iterator[Delivery]:
    """Waiting and in-flight deliveries in one order, then those in each other state."""
    live = merge(_available(queue), _in_flight(queue), key=_number)
    done, expired = (_settled(queue, state) for state in (State.DONE, State.EXPIRED))
    for found in (live, _delayed(queue), done, expired):
        while group := list(islice(found, _GROUP)):
            yield from _with_stories(queue, group)


def _number(delivery: Delivery) -> tuple[int, int]:
    position = delivery.message.id if delivery.position is None else delivery.position
    return -delivery.message.priority, position


def _waiting(queue: Queue, entry: ShelfEntry, state: State, due_at: int | None = None) -> Delivery:
    position = message_id_of(entry.claim_id)
    return Delivery(
        tenant=queue.tenant,
        queue=queue.home.name,
        message=entry.message,
        state=state,
        dead=queue.is_dead_letter,
        attempts=entry.attempts,
        due_at=due_at,
        at=entry.at if queue.is_dead_letter else None,
        position=None if position == entry.message_id else position,
    )


def _available(queue: Queue) -> Iterator[Delivery]:
    for entry in queue.shelf.walk(-1):
        yield _waiting(queue, entry, State.AVAILABLE)


def _in_flight(queue: Queue) -> Iterator[Delivery]:
    for entry in sorted(queue.claims.values(), key=lambda held: held.claim_id & NUMBER_MASK):
        yield replace(
            _waiting(queue, entry, State.IN_FLIGHT),
            claimed_at=entry.claimed_at,
            deadline=entry.deadline,
            consumer=entry.consumer,
            receipt=entry.receipt,
        )


def _delayed(queue: Queue) -> Iterator[Delivery]:
    for key, _ in queue.stage.prefix(queue.keys.place):
        found = queue.find_delayed(int.from_bytes(key[-8:], "big"))
        assert found is not None
        yield _waiting(queue, found[1], State.DELAYED, due_at=found[0])


def _settled(queue: Queue, state: State) -> Iterator[Delivery]:
    shelf = queue.done if state is State.DONE else queue.expired
    for item in shelf.walk(-1):
        yield Delivery(
            tenant=queue.tenant,
            queue=queue.home.name,
            message=decode_metadata(item.message_id, item.metadata),
            state=state,
            dead=queue.is_dead_letter,
            attempts=item.attempts,
            at=item.at,
        )


def _with_stories(queue: Queue, group: Sequence[Delivery]) -> Iterator[Delivery]:
    """The deliveries with what their attempts, trails and results say."""
    suffixes = [delivery.message.id.to_bytes(8, "big") for delivery in group]
    get_many, keys = queue.stage.get_many, queue.keys
    attempts, trails, results = (
        get_many([prefix + suffix for suffix in suffixes])
        for prefix in (keys.attempts, keys.trail, keys.result)
    )
    for delivery, tried, left, answered in zip(group, attempts, trails, results, strict=True):
        trail = Trail.decode(left)
        yield replace(
            delivery,
            released=trail.released,
            error=trail.last_error,
            result=None if answered is None else unseal(answered, "result"),
            history=_history(queue.home, delivery, tried, trail),
        )


def _history(
    queue: Queue, delivery: Delivery, attempts: bytes | None, trail: Trail
) -> tuple[Step, ...]:
    if attempts is None and not trail.marks and delivery.state is not State.DONE:
        return ()
    place = Place(
        dead=delivery.dead,
        in_flight=delivery.state is State.IN_FLIGHT,
        done_at=delivery.at if delivery.state is State.DONE else None,
    )
    message = delivery.message
    times = (message.published_at, message.deliver_at)
    events = islice(transitions(queue, times, attempts, trail, place), 1, None)
    return tuple(
        Step(
            event.at,
            event.transition,
            event.state,
            event.queue.endswith(DLQ_SUFFIX),
            event.consumer,
            event.error,
        )
        for event in events
    )


# -- everything else -------------------------------------------------------------------


def _keys(core: Core) -> Iterator[OpenKey]:
    for key, value in core.stage.prefix(OPEN_PREFIX):
        named, position = untangle(key, len(OPEN_PREFIX))
        tenant, _, topic = named.decode().partition("/")
        known = OpenKeyRecord.decode(value)
        yield OpenKey(
            tenant, topic, key[position:].decode(), known.message_id, known.priority, known.queues
        )


def _ids(core: Core) -> Iterator[IdempotencyId | BatchId | SettleId]:
    for prefix in REMEMBERED_PREFIXES:
        for key, value in core.stage.prefix(prefix):
            known = remembered_id(key, value, core.window_of)
            yield _id(known)


def _id(known: RememberedId) -> IdempotencyId | BatchId | SettleId:
    tenant, name, text, at, until = known.tenant, known.name, known.id, known.at, known.until
    if known.first is not None:
        first = known.first
        return IdempotencyId(
            tenant, name, text, known.partitioned, at, until, first.message_id, first.offset
        )
    if known.reply is not None:
        return BatchId(tenant, name, text, at, until, known.own_ms, known.reply)
    assert known.settled is not None
    return SettleId(tenant, name, text, at, until, known.settled)


def _membership(queue: Queue) -> Iterator[Consumer | Partition]:
    partitions = queue.partitions
    if partitions is None:
        return
    for name, deadline in partitions.consumers.items():
        yield Consumer(queue.tenant, queue.name, name, deadline)
    for name, partition in partitions.by_name.items():
        yield Partition(queue.tenant, queue.name, name, partition.epoch, partition.owner)


def _replay_marks(queue: Queue) -> Iterator[ReplayMark]:
    for state in (queue, queue.dead):
        assert state is not None
        prefix = state.keys.replayed
        for key, _ in state.stage.prefix(prefix):
            number, text = key[len(prefix) : len(prefix) + 8], key[len(prefix) + 8 :]
            yield ReplayMark(
                queue.tenant,
                queue.name,
                state.is_dead_letter,
                int.from_bytes(number, "big"),
                text.decode(),
            )


def _documents(core: Core) -> Iterator[Document]:
    for key, value in core.stage.prefix(DOCUMENT_PREFIX):
        kind, position = untangle(key, len(DOCUMENT_PREFIX))
        if kind != RECEIPT_KIND.encode():
            yield Document(kind.decode(), key[position:].decode(), unseal(value, "document"))
