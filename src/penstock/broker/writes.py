"""Writes of many batches, which one run begins and which finish once (P4).

A job that publishes in many batches registers its write before the first of them. The first run
wins: another run of the same write learns that it was begun, and whether it is finished, before
it publishes anything. A write is a document of the engine; its kind contains the tenant, and its
name the topic and the id.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.broker.scope import BrokerOptions, Scope, check_text
from penstock.errors import BadInput, Conflict, StoreCorrupt
from penstock.model.limits import MAX_OFFSET, check_name, shown
from penstock.model.writes import MAX_WRITE_ID_BYTES, WRITE_KEPT_MS, Write
from penstock.storage.contract import Engine

__all__ = ["Writes", "check_rows", "check_write"]

_KIND: Final = "write/"
#: In the name of a write to all topics; no topic has this name.
_ALL_TOPICS: Final = ""
#: How often old writes are removed.
_TIDY_MS: Final = 3600 * 1000

_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(Write)


class Writes(Scope):
    """The verbs on writes."""

    def __init__(self, engine: Engine, options: BrokerOptions, tenant: str) -> None:
        super().__init__(engine, options, tenant)
        self._tidied_at = 0

    async def begin_write(
        self, topic: str, id: str, run: str, *, number: int | None = None, all_topics: bool = False
    ) -> Write:
        """Begin a write to a topic, unless a run has begun it already; returns the stored write.

        With ``all_topics`` the run that began it for the first topic has begun it for all.
        """
        check_write(topic, id, run, number)
        now = self._clock.now()
        if now - self._tidied_at >= _TIDY_MS:
            self._tidied_at = now
            await self._forget_writes(now)
        new = Write(id=id, run=run, number=number, begun_at=now)
        if all_topics:
            new = replace(new, run=(await self._begin(_ALL_TOPICS, new)).run)
        return replace(await self._begin(topic, new), asked_at=now)

    async def _begin(self, topic: str, new: Write) -> Write:
        """Store a write, unless there is one; returns the stored one."""
        number = new.number
        known: bytes | None = None
        while True:
            value = await self._engine.add_document(
                self._write_kind, f"{topic}/{new.id}", _encode(new), known
            )
            write = _decode(value)
            if number is None or number == write.number:
                return write
            if write.number is not None and write.number > number:
                where = repr(topic) if topic else "all topics"
                raise Conflict(
                    f"Write {write.number} of {shown(new.id)} to {where} has begun; {number} is an "
                    "earlier one.",
                    field="number",
                    limit=write.number,
                )
            # Earlier writes are over: replace the record.
            known = value

    async def finish_write(
        self, topic: str, id: str, run: str, rows: int, *, number: int | None = None
    ) -> Write:
        """Finish a write that has published ``rows`` messages; finishing twice is fine."""
        check_write(topic, id, run, number)
        check_rows(rows)
        name = f"{topic}/{id}"
        value = await self._engine.get_document(self._write_kind, name)
        while True:
            known = None if value is None else _decode(value)
            if known is None or known.number != number:
                raise Conflict(f"The write {shown(id)} to {topic!r} was not begun.", field="id")
            write = replace(known, run=run, rows=rows)
            new = _encode(write)
            there = await self._engine.add_document(self._write_kind, name, new, value)
            if there == new:
                return write
            value = there

    async def _forget_writes(self, now: int) -> None:
        for name, value in await self._engine.list_documents(self._write_kind):
            if now - _decode(value).begun_at > WRITE_KEPT_MS:
                # A later write may replace it meanwhile, and that one is to be remembered.
                await self._engine.delete_document(self._write_kind, name, value)

    @property
    def _write_kind(self) -> str:
        return _KIND + self.tenant


def check_write(topic: object, id: object, run: object, number: object = None) -> None:
    """Refuse arguments that cannot identify a write."""
    if number is not None and (type(number) is not int or not 0 <= number <= MAX_OFFSET):
        raise BadInput("number must be the number of a write.", field="number", limit=MAX_OFFSET)
    check_name(topic, "topic")
    check_text("id", id, least=1, most=MAX_WRITE_ID_BYTES)
    check_text("run", run, least=1, most=MAX_WRITE_ID_BYTES)


def check_rows(rows: object) -> None:
    """Refuse a value that is not a number of messages."""
    if type(rows) is not int or not 0 <= rows <= MAX_OFFSET:
        raise BadInput("rows must be a number of messages.", field="rows", limit=MAX_OFFSET)


def _decode(value: bytes) -> Write:
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreCorrupt("The record of a write cannot be read.") from error
