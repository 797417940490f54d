"""Ids: which idempotency ids and batch ids were seen inside their windows (P4).

An id that is new is written down, with a random token of this transaction, before it is looked at:
if two transactions bring the same id, the second waits for the first, and then sees its token.

The window of an id is its topic's. A batch id may have one of its own, which a row keeps where
another names its message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.model.message import MessageId, Offset, Outgoing, Published
from penstock.storage.repetition import REPEAT_WINDOW_MS
from penstock.storage.sql.catalog import Tenant
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Again, Session
from penstock.storage.sql.entries import Entry, Planned, Twin, published
from penstock.storage.sql.work import Work

__all__ = ["Ids", "find_batch"]

_MESSAGE: Final = 0
_BATCH: Final = 1
_SETTLE: Final = 2

_encode_reply: Final = msgspec.msgpack.Encoder().encode
_decode_reply: Final = msgspec.msgpack.Decoder(tuple[Published, ...]).decode


async def find_batch(
    core: Core, tenant: str, topic: str, batch_id: str
) -> tuple[Published, ...] | None:
    """What was answered to a batch, inside its window."""

    async def look(session: Session, known: Tenant) -> tuple[Published, ...] | None:
        rows = await session.fetch(
            "find_batch", tenant=known.number, topic=topic, id=batch_id.encode()
        )
        if not rows:
            return None
        at, own_ms, reply = rows[0]
        window_ms = known.topic(topic).dedup_window_ms if own_ms is None else own_ms
        return _decode_reply(reply) if at + window_ms > core.clock.now() else None

    return await core.read(tenant, look)


class _Seen(NamedTuple):
    """An id that is on record."""

    at: int
    message: int
    entry: int


class _SeenBatch(NamedTuple):
    """A batch id that is on record."""

    at: int
    own_ms: int | None
    reply: tuple[Published, ...]


class _KeptBatch(NamedTuple):
    """A batch id that this transaction keeps."""

    plan: Sequence[Planned]
    own_ms: int | None


class _Kept(NamedTuple):
    """An id that this transaction keeps."""

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
        #: Those that were written down by this transaction.
        self._new: set[tuple[int, str, str]] = set()
        self._batches: dict[tuple[str, str], _SeenBatch] = {}
        self._kept_batches: dict[tuple[str, str], _KeptBatch] = {}

    def layer(self) -> _Layer:
        """The ids as one batch sees them, to be accepted or forgotten with it."""
        return _Layer(self)

    async def read(self, outgoing: Sequence[Outgoing]) -> None:
        """Look up the ids of these messages, and lock them."""
        wanted = {
            (one.topic, new.id): window_ms
            for one in outgoing
            if (window_ms := self._window(one.topic)) > 0
            for new in one.messages
            if new.id is not None
        }
        for topic, text, at, message, entry, _ in await self._claim(_MESSAGE, wanted):
            self.found[topic, text] = _Seen(at, message, entry)

    async def read_batches(self, wanted: Sequence[tuple[str, str | None, int | None]]) -> None:
        """Look up batch ids, and lock them; each may have a window of its own."""
        windows: dict[tuple[str, str], int] = {}
        for topic, text, own_ms in wanted:
            if text is not None:
                window_ms = self._window(topic, own_ms)
                windows[topic, text] = max(window_ms, windows.get((topic, text), 0))
        for topic, text, at, own_ms, _, reply in await self._claim(_BATCH, windows):
            self._batches[topic, text] = _SeenBatch(at, own_ms, _decode_reply(reply))

    def _window(self, topic: str, own_ms: int | None = None) -> int:
        return self.work.tenant.topic(topic).dedup_window_ms if own_ms is None else own_ms

    async def _claim(
        self, kind: int, wanted: Mapping[tuple[str, str], int]
    ) -> list[tuple[str, str, int, int, int, bytes]]:
        """Write the ids down for as long as their windows, and give those that were there before.

        One without a window is only looked at: it may have had one when it was written down.
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
            # The row existed when it was to be written, and a sweep deleted it before it was
            # locked. Another publish may write the same id now.
            raise Again("an id was forgotten meanwhile")
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
        """What was answered the first time."""
        assert batch_id is not None
        kept = self._kept_batches.get((topic, batch_id))
        return self._batches[topic, batch_id].reply if kept is None else published(kept.plan)

    def keep_batch(
        self, topic: str, batch_id: str | None, own_ms: int | None, plan: Sequence[Planned]
    ) -> None:
        """The batch is accepted: from now on it is repeated."""
        if batch_id is not None and self._window(topic, own_ms) > 0:
            self._kept_batches[topic, batch_id] = _KeptBatch(plan, own_ms)

    # -- settles with publish ----------------------------------------------------------

    async def read_settle(self, queue: str, settle_id: str) -> bytes | None:
        """The answer to a settle with publish, if it was given inside the window."""
        rows = await self.work.session.fetch(
            "read_ids",
            tenant=self.work.tenant.number,
            kind=_SETTLE,
            topic=queue,
            ids=[settle_id.encode()],
        )
        return next((row[4] for row in rows if self.work.now < row[1] + REPEAT_WINDOW_MS), None)

    async def write_settle(self, queue: str, settle_id: str, reply: bytes) -> None:
        """Keep the answer to a settle with publish."""
        tenant, now = self.work.tenant.number, self.work.now
        until = now + REPEAT_WINDOW_MS
        row = (tenant, _SETTLE, queue, settle_id.encode(), now, until, self._token)
        await self.work.session.write("put_ids", [(*row, None, None, reply)])
        self.work.records += 1

    # -- the end -----------------------------------------------------------------------

    async def write(self) -> None:
        """Write what the ids stand for, and forget those whose batch was refused."""
        work, token = self.work, self._token
        tenant, now = work.tenant.number, work.now
        rows: list[tuple[object, ...]] = [
            (
                tenant,
                _MESSAGE,
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
            reply = _encode_reply(published(plan))
            until = now + self._window(topic, own_ms)
            rows.append(
                (tenant, _BATCH, topic, text.encode(), now, until, token, own_ms, None, reply)
            )
        if rows:
            await work.session.write("put_ids", rows)
            work.records += len(rows)
        kept_ids = {(_MESSAGE, *key) for key in self.kept}
        kept_ids |= {(_BATCH, *key) for key in self._kept_batches}
        for kind, topic, text in sorted(self._new - kept_ids):
            await work.session.run(
                "forget_ids", tenant=tenant, kind=kind, topic=topic, ids=[text.encode()]
            )


class _Layer:
    """The ids as one batch sees them."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._kept: dict[tuple[str, str], _Kept] = {}

    def seen(self, topic: str, id: str, window_ms: int) -> Planned | None:
        """What the id stands for, if it was seen inside the window."""
        kept = self._kept.get((topic, id)) or self._ids.kept.get((topic, id))
        if kept is not None:
            return Twin(kept.entry)
        seen = self._ids.found.get((topic, id))
        if seen is None or seen.at + window_ms <= self._ids.work.now:
            return None
        return Published(MessageId(seen.message), Offset(seen.entry), duplicate=True)

    def keep(self, topic: str, id: str, entry: Entry, window_ms: int) -> None:
        """From now on the id stands for this entry."""
        self._kept[topic, id] = _Kept(entry, window_ms)

    def accept(self) -> None:
        """The batch is accepted."""
        self._ids.kept.update(self._kept)
