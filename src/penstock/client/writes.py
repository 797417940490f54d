"""Writes of many batches over HTTP. Both verbs set a state, so they may be retried."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.broker.writes import check_rows, check_write
from penstock.client.calling import read
from penstock.client.scope import Scope
from penstock.model.writes import Write
from penstock.wire.bodies import BeginWriteBody, FinishWriteBody
from penstock.wire.codecs import encode_msgpack

__all__ = ["Writes"]

_WRITE: Final = msgspec.msgpack.Decoder(Write)


class Writes(Scope):
    """The verbs on writes."""

    async def begin_write(
        self, topic: str, id: str, run: str, *, number: int | None = None, all_topics: bool = False
    ) -> Write:
        """Begin a write to a topic, unless a run has begun it already; returns the stored write."""
        check_write(topic, id, run, number)
        body = encode_msgpack(BeginWriteBody(id, run, number, all_topics))
        return read(_WRITE, await self._send("POST", f"/v1/topics/{topic}/writes", body))

    async def finish_write(
        self, topic: str, id: str, run: str, rows: int, *, number: int | None = None
    ) -> Write:
        """Finish a write that has published ``rows`` messages."""
        check_write(topic, id, run, number)
        check_rows(rows)
        body = encode_msgpack(FinishWriteBody(id, run, rows, number))
        return read(_WRITE, await self._send("POST", f"/v1/topics/{topic}/writes/finish", body))
