"""Ids: which idempotency ids and batch ids were seen inside their windows (P4).

An id that is new is written down, with a mark of this transaction, before it is looked at: if
two transactions bring the same id, the second waits for the first, and then sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.model.message import MessageId, Offset, Outgoing, Published
from penstock.storage.sql.entries import Entry, Planned, Twin, published
from penstock.storage.sql.leases import Leases
from penstock.storage.sql.work import Work

__all__ = ["Ids"]

_MESSAGE: Final = 0
_BATCH: Final = 1

_encode_reply: Final = msgspec.msgpack.Encoder().encode
_decode_reply: Final = msgspec.msgpack.Decoder(tuple[Published, ...]).decode


class _Seen(NamedTuple):
    """An id that is on record."""

    at: int
    message: int
    entry: int


class _Kept(NamedTuple):
    """An id that this transaction keeps."""

    entry: Entry
    window_ms: int


class Ids:
    """The ids of one transaction."""

    def __init__(self, work: Work, leases: Leases) -> None:
        self.work = work
        self._leases = leases
        self._token = 0
        self.found: dict[tuple[str, str], _Seen] = {}
        self.kept: dict[tuple[str, str], _Kept] = {}
        #: Those that were written down by this transaction.
        self._new: set[tuple[int, str, str]] = set()
        self._batches: dict[tuple[str, str], tuple[int, tuple[Published, ...]]] = {}
        self._kept_batches: dict[tuple[str, str], Sequence[Planned]] = {}

    def layer(self) -> _Layer:
        """The ids as one batch sees them, to be accepted or forgotten with it."""
        return _Layer(self)

    async def read(self, outgoing: Sequence[Outgoing]) -> None:
        """Look up the ids of these messages, and lock them."""
        wanted = {
            (one.topic, new.id)
            for one in outgoing
            if self._window(one.topic) > 0
            for new in one.messages
            if new.id is not None
        }
        for topic, text, at, message, entry, _ in await self._claim(_MESSAGE, wanted):
            self.found[topic, text] = _Seen(at, message, entry)

    async def read_batches(self, wanted: Sequence[tuple[str, str | None]]) -> None:
        """Look up batch ids, and lock them."""
        ids = {(topic, b) for topic, b in wanted if b is not None and self._window(topic) > 0}
        for topic, text, at, _, _, reply in await self._claim(_BATCH, ids):
            self._batches[topic, text] = (at, _decode_reply(reply))

    def _window(self, topic: str) -> int:
        return self.work.tenant.topic(topic).dedup_window_ms

    async def _claim(
        self, kind: int, wanted: set[tuple[str, str]]
    ) -> list[tuple[str, str, int, int, int, bytes]]:
        """Write the ids down, and give those that were there before."""
        if not wanted:
            return []
        self._token = self._token or self._leases.next(self.work.now)
        session, tenant, now = self.work.session, self.work.tenant.number, self.work.now
        await session.write(
            "claim_ids",
            [
                (tenant, kind, topic, text.encode(), now, now + self._window(topic), self._token)
                for topic, text in sorted(wanted)
            ],
        )
        by_topic: dict[str, list[bytes]] = {}
        for topic, text in sorted(wanted):
            by_topic.setdefault(topic, []).append(text.encode())
        found: list[tuple[str, str, int, int, int, bytes]] = []
        for topic, ids in by_topic.items():
            rows = await session.fetch("read_ids", tenant=tenant, kind=kind, topic=topic, ids=ids)
            for raw, at, message, entry, reply, token in rows:
                if token == self._token:
                    self._new.add((kind, topic, raw.decode()))
                else:
                    found.append((topic, raw.decode(), at, message, entry, reply))
        return found

    # -- batches -----------------------------------------------------------------------

    def is_repeated(self, topic: str, batch_id: str | None) -> bool:
        """Whether the batch was published inside the window, or by this transaction."""
        if batch_id is None:
            return False
        if (topic, batch_id) in self._kept_batches:
            return True
        seen = self._batches.get((topic, batch_id))
        return seen is not None and seen[0] + self._window(topic) > self.work.now

    def first_reply(self, topic: str, batch_id: str | None) -> tuple[Published, ...]:
        """What was answered the first time."""
        assert batch_id is not None
        kept = self._kept_batches.get((topic, batch_id))
        return self._batches[topic, batch_id][1] if kept is None else published(kept)

    def keep_batch(self, topic: str, batch_id: str | None, plan: Sequence[Planned]) -> None:
        """The batch is accepted: from now on it is repeated."""
        if batch_id is not None and self._window(topic) > 0:
            self._kept_batches[topic, batch_id] = plan

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
        for (topic, text), plan in self._kept_batches.items():
            reply = _encode_reply(published(plan))
            until = now + self._window(topic)
            rows.append(
                (tenant, _BATCH, topic, text.encode(), now, until, token, None, None, reply)
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
