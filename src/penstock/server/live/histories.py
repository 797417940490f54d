"""The histories of a server: one per tenant and one per busy queue, kept across restarts.

They are stored as one document per tenant, of bounded size: the tenant's history and those of its
``_STORED`` most recently changed queues. A document that cannot be read is left out; charts then
begin empty.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from typing import Final

import msgspec
from msgspec import Struct

from penstock.errors import PenstockError
from penstock.server.live.board import Deltas, Level
from penstock.server.live.history import History
from penstock.storage.contract import Engine

__all__ = ["Histories"]

#: Queues with a history, of all tenants: 20 MB if all of them are always busy.
MAX_QUEUES: Final = 100
_STORED: Final = 15
_KIND: Final = "live-history"
#: A document with sixteen full histories has 3.2 MB.
_MAX_BYTES: Final = 8 * 1024 * 1024

_log = logging.getLogger("penstock.server")


class _Stored(Struct, frozen=True):
    """A history in a document. Fields are added, never changed."""

    hour: bytes
    day: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
#: By queue; the tenant's own history has the empty name.
_decoder: Final = msgspec.msgpack.Decoder(dict[str, _Stored])


class Histories:
    """All histories, by tenant and queue; the tenant's own has no queue."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[tuple[str, str | None], History] = {}
        self._loaded: set[str] = set()
        self._unsaved: set[str] = set()

    async def load(self, tenant: str) -> None:
        """Read what an earlier process stored, once per tenant."""
        if tenant in self._loaded:
            return
        self._loaded.add(tenant)
        try:
            value = await self._engine.get_document(_KIND, tenant)
            stored = {} if value is None else await asyncio.to_thread(_unpacked, value)
        except (PenstockError, ValueError, zlib.error) as error:
            _log.warning("The stored history of tenant %r cannot be read: %s", tenant, error)
            return
        for queue, item in stored.items():
            history = History()
            history.hour.restore(item.hour)
            history.day.restore(item.day)
            self._known.setdefault((tenant, queue or None), history)

    def add(
        self, tenant: str, queue: str | None, since: int, at: int, level: Level, deltas: Deltas
    ) -> None:
        """Record a reading; times are epoch milliseconds."""
        history = self._known.get((tenant, queue))
        if history is None:
            if queue is not None:
                self._make_room()
            history = self._known[tenant, queue] = History()
        history.add(since // 1000, at // 1000, level, deltas)
        self._unsaved.add(tenant)

    def get(self, tenant: str, queue: str | None) -> History | None:
        """The history of a queue, or of the tenant."""
        return self._known.get((tenant, queue))

    def forget(self, tenant: str, queue: str) -> None:
        """The queue was deleted; another one may get its name."""
        self._known.pop((tenant, queue), None)

    async def save(self) -> None:
        """Store what has changed."""
        tenants, self._unsaved = self._unsaved, set()
        for tenant in tenants:
            value = await asyncio.to_thread(_packed, self._stored(tenant))
            await self._engine.put_document(_KIND, tenant, value)

    def _stored(self, tenant: str) -> dict[str, _Stored]:
        own = [(queue, one) for (of, queue), one in self._known.items() if of == tenant]
        own.sort(key=lambda item: (item[0] is not None, -item[1].changed_s))
        return {
            queue or "": _Stored(history.hour.dump(), history.day.dump())
            for queue, history in own[: _STORED + 1]
        }

    def _make_room(self) -> None:
        queues = [key for key in self._known if key[1] is not None]
        if len(queues) >= MAX_QUEUES:
            del self._known[min(queues, key=lambda key: self._known[key].changed_s)]


def _packed(stored: dict[str, _Stored]) -> bytes:
    return zlib.compress(_encode(stored), 1)


def _unpacked(value: bytes) -> dict[str, _Stored]:
    opened = zlib.decompressobj()
    data = opened.decompress(value, _MAX_BYTES)
    if opened.unconsumed_tail:
        raise ValueError("the document is too large")
    return _decoder.decode(data)
