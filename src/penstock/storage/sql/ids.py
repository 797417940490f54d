"""Ids: the idempotency ids and batch ids seen inside their windows (P4).

A new id is inserted with a random token of this transaction before it is read back. If two
transactions insert the same id, the second waits for the first and then sees the other's token.

The window of an id is its topic's. A batch id may have its own window, which is stored in the
column that holds the message of an idempotency id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.model.message import MessageId, Offset, Outgoing, Published
from penstock.model.queue import TopicPolicy
from penstock.storage.dedup_scope import is_partitioned, stored_id
from penstock.storage.repetition import REPEAT_WINDOW_MS
from penstock.storage.sql.append import Entry, Planned, Twin, published
from penstock.storage.sql.catalog import Tenant
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import RetryTransaction, Session
from penstock.storage.sql.work import Work

__all__ = [
    "TOPIC_KINDS",
    "Ids",
    "decode_batch_reply",
    "encode_batch_reply",
    "find_batch",
    "kind_of",
]

_MESSAGE: Final = 0
_BATCH: Final = 1
_SETTLE: Final = 2
#: Ids that are unique per partition (``storage.dedup_scope``).
_PARTITION_MESSAGE: Final = 3
#: The kinds of ids that a topic's dedup window applies to.
TOPIC_KINDS: Final = (_MESSAGE, _BATCH, _PARTITION_MESSAGE)

encode_batch_reply: Final = msgspec.msgpack.Encoder().encode
decode_batch_reply: Final = msgspec.msgpack.Decoder(tuple[Published, ...]).decode


def kind_of(policy: TopicPolicy) -> int:
    """How the ids of messages are recorded in a topic with this policy."""
    return _PARTITION_MESSAGE if is_partitioned(policy) else _MESSAGE


async def find_batch(
    core: Core, tenant: str, topic: str, batch_id: str
) -> tuple[Published, ...] | None:
    """The reply to a batch, if it was published inside its window."""

    async def look(session: Session, known: Tenant) -> tuple[Published, ...] | None:
        rows = await session.fetch(
            "find_batch", tenant=known.number, topic=topic, id=batch_id.encode()
        )
        if not rows:
            return None
        at, own_ms, reply = rows[0]
        window_ms = known.topic(topic).dedup_window_ms if own_ms is None else own_ms
        return decode_batch_reply(reply) if at + window_ms > core.clock.now() else None

    return await core.read(tenant, look)


class _Seen(NamedTuple):
    """A recorded id."""

    at: int
    message: int
    entry: int


class _SeenBatch(NamedTuple):
    """A recorded batch id."""

    at: int
    own_ms: int | None
    reply: tuple[Published, ...]


class _KeptBatch(NamedTuple):
    """A batch id that this transaction records."""

    plan: Sequence[Planned]
    own_ms: int | None


class _Kept(NamedTuple):
    """An id that this transaction records."""

    entry: Entry
    window_ms: int


class Ids:
    """The ids of one transaction."""

    def __init__(self, work: Work, token: Callable[[], int]) -> None:
        self.work = work
        self._new_token = token
        self._token = 0
        self.found: dict[tuple[str, str], _Seen] = {}
        self.kept: dict[tuple[str, str], _Kept] = {}
        #: Ids that this transaction inserted.
        self._new: set[tuple[int, str, str]] = set()
        self._batches: dict[tuple[str, str], _SeenBatch] = {}
        self._kept_batches: dict[tuple[str, str], _KeptBatch] = {}

    def layer(self) -> _Layer:
        """The ids from the view of one batch, to be accepted or discarded with it."""
        return _Layer(self)

    async def read(self, outgoing: Sequence[Outgoing]) -> None:
        """Look up and lock the ids of these messages."""
        wanted: dict[int, dict[tuple[str, str], int]] = {}
        for one in outgoing:
            policy = self.work.tenant.topic(one.topic)
            if policy.dedup_window_ms:
                named = wanted.setdefault(self._kind(one.topic), {})
                for new in one.messages:
                    if new.id is not None:
                        text = stored_id(policy, new.id, new.partition_key)
                        named[one.topic, text] = policy.dedup_window_ms
        for kind, named in sorted(wanted.items()):
            for topic, text, at, message, entry, _ in await self._claim(kind, named):
                self.found[topic, text] = _Seen(at, message, entry)

    def _kind(self, topic: str) -> int:
        """How the ids of the topic's messages are recorded."""
        return kind_of(self.work.tenant.topic(topic))

    async def read_batches(self, wanted: Sequence[tuple[str, str | None, int | None]]) -> None:
        """Look up and lock batch ids; each may have its own window."""
        windows: dict[tuple[str, str], int] = {}
        for topic, text, own_ms in wanted:
            if text is not None:
                window_ms = self._window(topic, own_ms)
                windows[topic, text] = max(window_ms, windows.get((topic, text), 0))
        for topic, text, at, own_ms, _, reply in await self._claim(_BATCH, windows):
            self._batches[topic, text] = _SeenBatch(at, own_ms, decode_batch_reply(reply))

    def _window(self, topic: str, own_ms: int | None = None) -> int:
        return self.work.tenant.topic(topic).dedup_window_ms if own_ms is None else own_ms

    async def _claim(
        self, kind: int, wanted: Mapping[tuple[str, str], int]
    ) -> list[tuple[str, str, int, int, int, bytes]]:
        """Insert the ids with their windows, and return those that existed before.

        An id without a window is only read: it may have had a window when it was recorded.
        """
        if not wanted:
            return []
        self._token = self._token or self._new_token()
        session, tenant, now = self.work.session, self.work.tenant.number, self.work.now
        new = [
            (tenant, kind, topic, text.encode(), now, now + window_ms, self._token)
            for (topic, text), window_ms in sorted(wanted.items())
            if window_ms > 0
        ]
        if new:
            await session.write("claim_ids", new)
        by_topic: dict[str, list[bytes]] = {}
        for topic, text in sorted(wanted):
            by_topic.setdefault(topic, []).append(text.encode())
        found: list[tuple[str, str, int, int, int, bytes]] = []
        missing = {(row[2], row[3]) for row in new}
        for topic, ids in by_topic.items():
            rows = await session.fetch("read_ids", tenant=tenant, kind=kind, topic=topic, ids=ids)
            for raw, at, message, entry, reply, token in rows:
                missing.discard((topic, raw))
                if token == self._token:
                    self._new.add((kind, topic, raw.decode()))
                else:
                    found.append((topic, raw.decode(), at, message, entry, reply))
        if missing:
            # The row existed when it was to be inserted, and a sweep deleted it before it was
            # locked. Another publish may insert the same id now.
            raise RetryTransaction("a sweep deleted an id before it was locked")
        return found

    # -- batches -----------------------------------------------------------------------

    def is_repeated(self, topic: str, batch_id: str | None) -> bool:
        """Whether the batch was published inside its window, or by this transaction."""
        if batch_id is None:
            return False
        if (topic, batch_id) in self._kept_batches:
            return True
        seen = self._batches.get((topic, batch_id))
        return seen is not None and seen.at + self._window(topic, seen.own_ms) > self.work.now

    def first_reply(self, topic: str, batch_id: str | None) -> tuple[Published, ...]:
        """The first reply to the batch."""
        assert batch_id is not None
        kept = self._kept_batches.get((topic, batch_id))
        return self._batches[topic, batch_id].reply if kept is None else published(kept.plan)

    def keep_batch(
        self, topic: str, batch_id: str | None, own_ms: int | None, plan: Sequence[Planned]
    ) -> None:
        """Record an accepted batch: from now on a repetition is recognised."""
        if batch_id is not None and self._window(topic, own_ms) > 0:
            self._kept_batches[topic, batch_id] = _KeptBatch(plan, own_ms)

    # -- settles with publish ----------------------------------------------------------

    async def read_settle(self, queue: str, settle_id: str) -> bytes | None:
        """The reply to a settle with publish, if it was given inside the window."""
        rows = await self.work.session.fetch(
            "read_ids",
            tenant=self.work.tenant.number,
            kind=_SETTLE,
            topic=queue,
            ids=[settle_id.encode()],
        )
        return next((row[4] for row in rows if self.work.now < row[1] + REPEAT_WINDOW_MS), None)

    async def write_settle(self, queue: str, settle_id: str, reply: bytes) -> None:
        """Record the reply to a settle with publish."""
        tenant, now = self.work.tenant.number, self.work.now
        until = now + REPEAT_WINDOW_MS
        row = (tenant, _SETTLE, queue, settle_id.encode(), now, until, self._token)
        await self.work.session.write("put_ids", [(*row, None, None, reply)])
        self.work.records += 1

    # -- writing -----------------------------------------------------------------------

    async def write(self) -> None:
        """Write the entries of the recorded ids, and delete the ids of refused batches."""
        work, token = self.work, self._token
        tenant, now = work.tenant.number, work.now
        rows: list[tuple[object, ...]] = [
            (
                tenant,
                self._kind(topic),
                topic,
                text.encode(),
                now,
                now + kept.window_ms,
                token,
                int(kept.entry.id),
                int(kept.entry.offset),
                None,
            )
            for (topic, text), kept in self.kept.items()
        ]
        for (topic, text), (plan, own_ms) in self._kept_batches.items():
            reply = encode_batch_reply(published(plan))
            until = now + self._window(topic, own_ms)
            rows.append(
                (tenant, _BATCH, topic, text.encode(), now, until, token, own_ms, None, reply)
            )
        if rows:
            await work.session.write("put_ids", rows)
            work.records += len(rows)
        kept_ids = {(self._kind(topic), topic, text) for topic, text in self.kept}
        kept_ids |= {(_BATCH, *key) for key in self._kept_batches}
        for kind, topic, text in sorted(self._new - kept_ids):
            await work.session.run(
                "forget_ids", tenant=tenant, kind=kind, topic=topic, ids=[text.encode()]
            )


class _Layer:
    """The ids from the view of one batch."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._kept: dict[tuple[str, str], _Kept] = {}

    def seen(self, topic: str, id: str, window_ms: int) -> Planned | None:
        """The earlier outcome for this id, if it was seen inside the window."""
        kept = self._kept.get((topic, id)) or self._ids.kept.get((topic, id))
        if kept is not None:
            return Twin(kept.entry)
        seen = self._ids.found.get((topic, id))
        if seen is None or seen.at + window_ms <= self._ids.work.now:
            return None
        return Published(MessageId(seen.message), Offset(seen.entry), duplicate=True)

    def keep(self, topic: str, id: str, entry: Entry, window_ms: int) -> None:
        """Record that the id denotes this entry from now on."""
        self._kept[topic, id] = _Kept(entry, window_ms)

    def accept(self) -> None:
        """Accept the ids of the batch."""
        self._ids.kept.update(self._kept)
