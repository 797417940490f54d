"""Idempotency ids: one id makes one log entry inside its window, across restarts (P4).

The id's record is written in the same commit as its message. Each commit also lists its ids under
the minute in which their window ends, so that expired ids are found without a full scan.

A batch id stands for a batch and its reply. The messages have consecutive ids and offsets except
for replacements and duplicates, so the record is a few runs, usually one. Its window is the topic's
or its own, which is then stored after the runs. A settle with publish is remembered in the same
way, under the id from ``storage.repetition``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.model.message import MessageId, Offset, Published
from penstock.storage.keyvalue.encoding import Reader, pack_var_bytes, seal, unseal, untangle
from penstock.storage.keyvalue.keys import (
    BATCH_PREFIX,
    DEDUP_PREFIX,
    DEDUP_SLOT_PREFIX,
    PARTITION_DEDUP_PREFIX,
    SETTLE_PREFIX,
    batch_key,
    dedup_key,
    dedup_slot_key,
    is_batch_key,
    is_settle_key,
    partition_dedup_key,
    settle_key,
)
from penstock.storage.keyvalue.stage import Stage
from penstock.storage.repetition import REPEAT_WINDOW_MS

__all__ = [
    "REMEMBERED_PREFIXES",
    "Dedup",
    "FirstPublish",
    "RememberedId",
    "batch_value",
    "id_value",
    "remembered_id",
    "settle_value",
    "slot_value",
]

_VALUE = struct.Struct("<QQq")
_U16 = struct.Struct("<H")
_AT = struct.Struct("<q")
_MS = struct.Struct("<q")
#: A run of consecutive messages: the first message id and offset, the count, and the flags of the
#: reply.
_RUN = struct.Struct("<QQIB")
_DUPLICATE: Final = 1
_REPLACED: Final = 2
#: A run of no messages: the runs after it went to as many queues as its message id says.
_QUEUES: Final = 4
_SLOT_MS: Final = 60_000
#: Slots whose last key is remembered.
_SLOTS: Final = 64
#: Array counts are 16 bits.
_MAX_KEYS: Final = 32_767
_KEY_PREFIX_BYTES: Final = 3
#: The cost of checking one id, in deliveries moved by a sweep.
_ID: Final = 0.25


class FirstPublish(Struct, frozen=True):
    """The first message with an idempotency id."""

    message_id: int
    offset: int
    at: int


#: The prefixes of the records of ids.
REMEMBERED_PREFIXES: Final = (DEDUP_PREFIX, PARTITION_DEDUP_PREFIX, BATCH_PREFIX, SETTLE_PREFIX)


class RememberedId(Struct, frozen=True, kw_only=True):
    """One id of any kind, as its record has it. One of the last three fields is set."""

    tenant: str
    name: str
    """Of the topic; of a settle with publish, of the queue."""
    id: str
    at: int
    until: int
    partitioned: bool = False
    own_ms: int | None = None
    first: FirstPublish | None = None
    reply: tuple[Published, ...] | None = None
    settled: bytes | None = None


def remembered_id(key: bytes, value: bytes, window_of: Callable[[str, str], int]) -> RememberedId:
    """Decode the record of an id."""
    named, position = untangle(key, _KEY_PREFIX_BYTES)
    tenant, _, name = named.decode().partition("/")
    at, own_ms = _remembered(key, value)
    until = at + (window_of(tenant, name) if own_ms is None else own_ms)
    known = RememberedId(tenant=tenant, name=name, id=key[position:].decode(), at=at, until=until)
    if is_batch_key(key):
        reply = tuple(_published(_batch(value)[2]))
        return replace(known, own_ms=own_ms, reply=reply)
    if is_settle_key(key):
        return replace(known, settled=unseal(value, "settle id")[_AT.size :])
    first = FirstPublish(*_VALUE.unpack(unseal(value, "idempotency id")))
    return replace(known, first=first, partitioned=key.startswith(PARTITION_DEDUP_PREFIX))


def id_value(first: FirstPublish) -> bytes:
    """The record of an idempotency id."""
    return seal(_VALUE.pack(first.message_id, first.offset, first.at))


def batch_value(at: int, own_ms: int | None, messages: Sequence[Published]) -> bytes:
    """The record of a batch id."""
    runs = b"".join(_RUN.pack(*run) for run in _runs(messages))
    return seal(_AT.pack(at) + runs + (b"" if own_ms is None else _MS.pack(own_ms)))


def settle_value(at: int, reply: bytes) -> bytes:
    """The record of a settle with publish."""
    return seal(_AT.pack(at) + reply)


def slot_value(keys: Sequence[bytes]) -> bytes:
    """The record that lists ids whose windows end in the same minute."""
    return seal(_U16.pack(len(keys)) + b"".join(map(pack_var_bytes, keys)))


class Dedup:
    """All remembered ids."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._staged: dict[int, list[bytes]] = {}
        #: Part of the next slot's key: at least the last offset, so that the key is unused after
        #: reopening the store.
        self._serial = 0
        #: The serial after the last one of each slot that was written to recently.
        self._slot_ends: dict[int, int] = {}
        #: No slot is below it. A scan from the prefix would step over tombstones of removed slots.
        self._floor = DEDUP_SLOT_PREFIX

    def find(
        self, tenant: str, topic: str, idempotency_id: str, *, partitioned: bool = False
    ) -> FirstPublish | None:
        value = self._stage.get(_key_of(partitioned)(tenant, topic, idempotency_id))
        if value is None:
            return None
        return FirstPublish(*_VALUE.unpack(unseal(value, "idempotency id")))

    def remember(
        self,
        tenant: str,
        topic: str,
        idempotency_id: str,
        first: FirstPublish,
        window_ms: int,
        *,
        partitioned: bool = False,
    ) -> None:
        key = _key_of(partitioned)(tenant, topic, idempotency_id)
        self._stage.put(key, id_value(first))
        self._schedule(key, first.at + window_ms)
        self._serial = max(self._serial, first.offset)

    def find_batch(
        self, tenant: str, topic: str, batch_id: str, now: int, window_ms: int
    ) -> tuple[Published, ...] | None:
        """The original reply, if the batch's own window, or else the topic's, is still open."""
        value = self._stage.get(batch_key(tenant, topic, batch_id))
        if value is None:
            return None
        at, own_ms, runs = _batch(value)
        if at + (window_ms if own_ms is None else own_ms) <= now:
            return None
        return tuple(_published(runs))

    def remember_batch(
        self,
        tenant: str,
        topic: str,
        batch_id: str,
        messages: Sequence[Published],
        now: int,
        window_ms: int,
        own_ms: int | None,
    ) -> None:
        """Remember the reply to a batch for its own window, or else the topic's."""
        key = batch_key(tenant, topic, batch_id)
        self._stage.put(key, batch_value(now, own_ms, messages))
        self._schedule(key, now + (window_ms if own_ms is None else own_ms))
        self._serial = max(self._serial, messages[-1].offset)

    def find_settle(self, tenant: str, queue: str, settle_id: str, now: int) -> bytes | None:
        """The reply to a settle with publish, if it is within the window."""
        value = self._stage.get(settle_key(tenant, queue, settle_id))
        if value is None:
            return None
        record = unseal(value, "settle id")
        at: int = _AT.unpack_from(record)[0]
        return record[_AT.size :] if now < at + REPEAT_WINDOW_MS else None

    def remember_settle(
        self, tenant: str, queue: str, settle_id: str, reply: bytes, now: int, offset: int
    ) -> None:
        """Remember the reply to a settle with publish; ``offset`` is the end of the log."""
        key = settle_key(tenant, queue, settle_id)
        self._stage.put(key, settle_value(now, reply))
        self._schedule(key, now + REPEAT_WINDOW_MS)
        self._serial = max(self._serial, offset)

    def write_to(self, stage: Stage) -> int:
        size = 0
        for slot, keys in self._staged.items():
            for begin in range(0, len(keys), _MAX_KEYS):
                part = keys[begin : begin + _MAX_KEYS]
                key = self._new_slot_key(stage, slot)
                value = stage.writes[key] = slot_value(part)
                size += len(value)
        self._staged = {}
        return size

    def forget_old(
        self, now: int, window_of: Callable[[str, str], int]
    ) -> Iterator[tuple[float, int]]:
        """Forget ids whose window has ended. Yields the cost of each id, and 1 if it was removed.

        The cost is in deliveries that a sweep moves in the same time. Other verbs may run between
        two ids: a slot in the past is no longer written to.
        """
        end = dedup_slot_key(now // _SLOT_MS, 0)
        while found := next(self._stage.scan(self._floor, end), None):
            slot_key, value = found
            self._floor = slot_key
            reader = Reader(unseal(value, "idempotency slot"), "idempotency slot")
            for _ in range(reader.u16()):
                yield _ID, self._forget(reader.var_bytes(), now, window_of)
            self._stage.delete(slot_key)
            if self._floor == slot_key:  # Unless a lower one was written meanwhile.
                self._floor = slot_key + b"\x00"
        self._floor = max(self._floor, end)

    def _new_slot_key(self, stage: Stage, slot: int) -> bytes:
        """An unused key. Appending to one record in every commit would grow it without limit."""
        end = self._slot_ends.get(slot)
        if end is None:
            end = self._find_slot_end(stage, slot)
        serial = max(self._serial, end)
        self._slot_ends[slot] = serial + 1
        key = dedup_slot_key(slot, serial)
        self._floor = min(self._floor, key)
        return key

    def _find_slot_end(self, stage: Stage, slot: int) -> int:
        if len(self._slot_ends) >= _SLOTS:
            self._slot_ends.clear()
        span = (dedup_slot_key(slot, 0), dedup_slot_key(slot + 1, 0))
        last = next(stage.scan(*span, reverse=True), None)
        return 0 if last is None else int.from_bytes(last[0][-8:], "big") + 1

    def _forget(self, key: bytes, now: int, window_of: Callable[[str, str], int]) -> int:
        value = self._stage.get(key)
        if value is None:
            return 0
        at, own_ms = _remembered(key, value)
        if own_ms is None:
            tenant, _, topic = untangle(key, _KEY_PREFIX_BYTES)[0].decode().partition("/")
            own_ms = window_of(tenant, topic)
        end = at + own_ms
        if end <= now:
            self._stage.delete(key)
            return 1
        if end // _SLOT_MS >= now // _SLOT_MS:
            self._schedule(key, end)  # The window was extended since.
        return 0

    def _schedule(self, key: bytes, end: int) -> None:
        self._staged.setdefault(end // _SLOT_MS, []).append(key)
        self._stage.mark(self)


def _key_of(partitioned: bool) -> Callable[[str, str, str], bytes]:
    """The key of an id; one that is unique per partition is a hash (``storage.dedup_scope``)."""
    return partition_dedup_key if partitioned else dedup_key


def _remembered(key: bytes, value: bytes) -> tuple[int, int | None]:
    """When the id was remembered, and its own window if it has one."""
    if is_batch_key(key):
        return _batch(value)[:2]
    if is_settle_key(key):
        return _AT.unpack_from(unseal(value, "settle id"))[0], REPEAT_WINDOW_MS
    _, _, at = _VALUE.unpack(unseal(value, "idempotency id"))
    return at, None


def _batch(value: bytes) -> tuple[int, int | None, bytes]:
    """When the batch was stored, its own window if it has one, and its runs."""
    record = unseal(value, "batch id")
    at: int = _AT.unpack_from(record)[0]
    runs = record[_AT.size :]
    if len(runs) % _RUN.size == 0:
        return at, None, runs
    return at, _MS.unpack_from(runs, len(runs) - _MS.size)[0], runs[: -_MS.size]


def _published(runs: bytes) -> Iterator[Published]:
    """The reply that ``_runs`` was made of. Before 1.0 a batch had no ``_QUEUES``: unknown."""
    queues: int | None = None
    for message_id, offset, count, said in _RUN.iter_unpack(runs):
        if said & _QUEUES:
            queues = message_id
        duplicate = bool(said & _DUPLICATE)
        for index in range(count):
            yield Published(
                MessageId(message_id + index),
                Offset(offset + index),
                duplicate,
                bool(said & _REPLACED),
                None if duplicate else queues,
            )


def _runs(messages: Sequence[Published]) -> list[tuple[int, int, int, int]]:
    runs: list[tuple[int, int, int, int]] = []
    queues: int | None = None
    begin = offset = end = said = 0
    for message in messages:
        flags = message.duplicate * _DUPLICATE + message.replaced * _REPLACED
        counts = message.queues is not None and message.queues != queues
        count = end - offset
        follows = message.id == begin + count and message.offset == end
        if end and follows and flags == said and not counts:
            end += 1
            continue
        if end:
            runs.append((begin, offset, count, said))
        if counts:
            queues = message.queues
            runs.append((queues or 0, 0, 0, _QUEUES))
        begin, offset, end, said = message.id, message.offset, message.offset + 1, flags
    runs.append((begin, offset, end - offset, said))
    return runs
