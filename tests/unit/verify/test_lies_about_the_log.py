"""A log that lies is found out, with the law and the message: L1, L2, P3, G1."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from penstock.errors import UnknownMessage
from penstock.model.delivery import LogEntry, LogPage, MessageDeliveries, Snapshot
from penstock.model.message import MessageId, Offset
from penstock.model.states import State
from penstock.testing.laws import law
from penstock.verify import Report, verify
from tests.unit.verify.liar import Liar, Stock

#: A queue that is behind counts the log, so an entry less there is one less in its lag.
MISCOUNTED: Final = ("Q2", "behind.queue", None)


def named(report: Report) -> set[tuple[str, str | None, int | None]]:
    """Which laws are broken where."""
    return {(item.law, item.queue, item.message_id) for item in report.violations}


class Readings:
    """Counts how often the log was begun without payloads: once, and then again."""

    def __init__(self) -> None:
        self.number = 0

    def see(self, entries: list[LogEntry]) -> int:
        if entries and entries[0].message.offset == 0 and entries[0].payload is None:
            self.number += 1
        return self.number


def without(entries: list[LogEntry], offset: int) -> list[LogEntry]:
    return [entry for entry in entries if entry.message.offset != offset]


def without_delivery(items: list[Snapshot], message_id: int) -> list[Snapshot]:
    return [item for item in items if item.message.id != message_id]


@law("L1")
async def test_entries_out_of_order(liar: Liar, stock: Stock) -> None:
    def swap(entries: list[LogEntry]) -> list[LogEntry]:
        if len(entries) < 8:
            return entries
        return [*entries[:6], entries[7], entries[6], *entries[8:]]

    liar.on_log = swap
    report = await verify(liar)
    assert ("L1", None, 6) in named(report)
    assert not report.ok


@law("L1")
async def test_an_entry_that_changes(liar: Liar, stock: Stock) -> None:
    readings = Readings()

    def change(entries: list[LogEntry]) -> list[LogEntry]:
        if readings.see(entries) < 2:
            return entries
        return [
            replace(entry, message=replace(entry.message, topic="changed"))
            if entry.message.id == stock["third"]
            else entry
            for entry in entries
        ]

    liar.on_log = change
    assert named(await verify(liar)) == {("L1", None, stock["third"])}


@law("L1")
async def test_an_entry_that_differs_with_its_payload(liar: Liar, stock: Stock) -> None:
    liar.on_log = lambda entries: [
        replace(entry, message=replace(entry.message, priority=9))
        if entry.payload == b"third"
        else entry
        for entry in entries
    ]
    assert named(await verify(liar)) == {("L1", None, stock["third"])}


@law("L1")
async def test_a_reader_that_is_sent_back(liar: Liar) -> None:
    """The reader goes on all the same, and comes to an end."""
    liar.on_log_page = lambda page: LogPage(page.entries, Offset(0))
    report = await verify(liar)
    assert {law for law, _, _ in named(report)} == {"L1"}


@law("L1")
async def test_a_message_before_its_own_entry(liar: Liar, stock: Stock) -> None:
    liar.on_log = lambda entries: [
        replace(entry, message=replace(entry.message, id=MessageId(entry.message.id + 5)))
        if entry.message.offset == stock["b1"]
        else entry
        for entry in entries
    ]
    assert ("L1", None, stock["b1"] + 5) in named(await verify(liar))


@law("L2")
async def test_an_entry_that_appears_later(liar: Liar, stock: Stock) -> None:
    readings = Readings()
    liar.on_log = lambda entries: (
        without(entries, stock["third"]) if readings.see(entries) < 2 else entries
    )
    assert named(await verify(liar)) == {("L2", None, stock["third"]), MISCOUNTED}


@law("L2")
async def test_an_entry_that_is_left_out_the_second_time(liar: Liar, stock: Stock) -> None:
    readings = Readings()
    liar.on_log = lambda entries: (
        entries if readings.see(entries) < 2 else without(entries, stock["third"])
    )
    assert named(await verify(liar)) == {("L2", None, stock["third"])}


@law("L2")
async def test_an_entry_that_only_its_delivery_knows(liar: Liar, stock: Stock) -> None:
    liar.on_log = lambda entries: without(entries, stock["third"])
    assert named(await verify(liar)) == {("L2", None, stock["third"]), MISCOUNTED}


@law("P3")
async def test_a_flipped_byte_in_the_log(liar: Liar, stock: Stock) -> None:
    liar.on_log = lambda entries: [
        replace(entry, payload=b"thirD") if entry.payload == b"third" else entry
        for entry in entries
    ]
    assert named(await verify(liar)) == {("P3", None, stock["third"])}


@law("P3")
async def test_a_payload_that_is_not_there(liar: Liar, stock: Stock) -> None:
    liar.on_log = lambda entries: [
        replace(entry, payload=None) if entry.payload == b"third" else entry for entry in entries
    ]
    assert named(await verify(liar)) == {("P3", None, stock["third"])}


@law("P3")
async def test_a_flipped_byte_in_the_message(liar: Liar, stock: Stock) -> None:
    liar.on_message = lambda found: (
        replace(found, payload=b"thirD") if found.payload == b"third" else found
    )
    assert named(await verify(liar)) == {("P3", None, stock["third"])}


async def test_a_replaced_entry_may_have_lost_its_payload(liar: Liar, stock: Stock) -> None:
    """What becomes of it is left to the engine; the newest has to be right."""
    liar.on_log = lambda entries: [
        replace(entry, payload=b"gone") if entry.payload == b"old" else entry for entry in entries
    ]
    assert named(await verify(liar)) == set()
    liar.on_log = lambda entries: [
        replace(entry, payload=b"gone") if entry.payload == b"new" else entry for entry in entries
    ]
    assert named(await verify(liar)) == {("P3", None, stock["keyed"])}


@law("P3")
async def test_a_delivery_with_other_metadata_than_the_log(liar: Liar, stock: Stock) -> None:
    def change(queue: str, state: State, items: list[Snapshot]) -> list[Snapshot]:
        return [
            replace(item, message=replace(item.message, checksum=1))
            if item.message.id == stock["failed"]
            else item
            for item in items
        ]

    liar.on_page = change
    found = named(await verify(liar, deep=False))
    assert found == {("P3", "jobs", stock["failed"]), ("P3", "jobs.dlq", stock["failed"])}


@law("G1")
async def test_a_message_that_left_too_early(liar: Liar, stock: Stock) -> None:
    lost = stock["in flight"]
    liar.on_log = lambda entries: without(entries, lost)
    liar.on_message = lambda found: found if found.message.id != lost else _unknown()
    assert named(await verify(liar)) == {("G1", "jobs", lost), MISCOUNTED}


@law("G1")
async def test_an_entry_that_left_before_it_was_routed(liar: Liar, stock: Stock) -> None:
    readings = Readings()
    lost = stock["unrouted"]

    def lose(entries: list[LogEntry]) -> list[LogEntry]:
        return entries if readings.see(entries) < 2 else without(entries, lost)

    def deny(found: MessageDeliveries) -> MessageDeliveries:
        return found if readings.number < 2 or found.message.id != lost else _unknown()

    liar.on_log = lose
    liar.on_message = deny
    assert named(await verify(liar)) == {("G1", "behind.queue", lost)}


def _unknown() -> MessageDeliveries:
    raise UnknownMessage("There is no such message.", field="id")
