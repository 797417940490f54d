"""An engine and the oracle side by side: runs the same calls and makes the replies comparable.

Ids, offsets and receipts differ between engines, so each side numbers them in order of appearance
and the numbers are compared. Not compared is what the contract leaves to the engine: durability,
how much one sweep did, the cursor of a page, and the payload of a log entry that was replaced.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from penstock.errors import PenstockError
from penstock.filters import Filter
from penstock.model.delivery import (
    Delivery,
    Outcome,
    Ownership,
    QueueStats,
    ReplayReply,
    Result,
    RouteReply,
    Snapshot,
)
from penstock.model.message import HeaderValue, Message, MessageId, Offset, Published
from penstock.model.queue import QueueInfo
from penstock.model.queue_events import EVENTS_TOPIC
from penstock.model.states import State
from penstock.storage.contract import Engine
from penstock.testing.bulk import check_bulk

__all__ = ["Plain", "Refused", "Side", "Verb", "attempt", "difference"]

#: A plain value: tuples, strings, numbers.
Plain: TypeAlias = object
#: A call on one side that returns a plain reply.
Verb: TypeAlias = Callable[["Side"], Coroutine[object, object, Plain]]

_MAX_PAGES: Final = 10_000
#: More dead-letter copies than one verb of a program appends.
_MAX_COPIES: Final = 10_000
_ORIGINAL: Final = "dead_letter_message_id"
#: Every how many reads of the log the bulk reads are checked too.
_LOOKS_IN_BULK: Final = 8


class Refused(tuple[str]):
    """A verb raised an error; contains the name of its class."""

    __slots__ = ()


class Side:
    """One of the two engines, with its numbering."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._offsets: dict[str, list[int]] = {}
        self._receipts: dict[str, int] = {}
        self.receipts: list[str] = []
        self._looks = 0

    # -- numbering ---------------------------------------------------------------------

    def offsets(self, tenant: str) -> list[int]:
        """Every offset published so far, in order."""
        return self._offsets.setdefault(tenant, [])

    def id(self, tenant: str, number: int) -> MessageId:
        """The id of the message whose first entry has this number."""
        return MessageId(self.offsets(tenant)[number])

    async def notice_copies(self, tenant: str) -> None:
        """Number the copies and events that a verb appended: no reply names them."""
        offsets = self.offsets(tenant)
        start = Offset(offsets[-1] + 1 if offsets else 0)
        page = await self.engine.read_log(tenant, start, _MAX_COPIES)
        for entry in page.entries:
            message = entry.message
            is_event = message.topic == EVENTS_TOPIC
            is_copy = "dead_letter_hops" in message.headers
            assert is_event or is_copy, "P2: a message was never published"
            offsets.append(entry.message.offset)

    def _number(self, tenant: str, offset: int) -> int:
        offsets = self.offsets(tenant)
        number = bisect_left(offsets, offset)
        assert number < len(offsets), f"offset {offset} was never published"
        assert offsets[number] == offset, f"offset {offset} was never published"
        return number

    def below(self, tenant: str, offset: int) -> int:
        """How many entries have a smaller offset."""
        return bisect_left(self.offsets(tenant), offset)

    def after(self, tenant: str, count: int) -> Offset:
        """The offset after the first ``count`` entries."""
        return Offset(self.offsets(tenant)[count - 1] + 1 if count else 0)

    # -- replies as plain values -------------------------------------------------------

    def published(
        self, tenant: str, replies: tuple[Published, ...], *, repeated: bool = False
    ) -> Plain:
        offsets = self.offsets(tenant)
        for reply in replies:
            if not reply.duplicate and not repeated:
                assert not offsets or reply.offset > offsets[-1], "L1: offsets strictly increase"
                offsets.append(reply.offset)
        return [
            (
                self._number(tenant, r.id),
                self._number(tenant, r.offset),
                r.duplicate,
                r.replaced,
                r.queues,
            )
            for r in replies
        ]

    def message(self, tenant: str, message: Message) -> Plain:
        return (
            ("id", self._number(tenant, message.id)),
            ("offset", self._number(tenant, message.offset)),
            message.topic,
            message.priority,
            message.published_at - message.deliver_at,
            message.published_at,
            message.expires_at,
            # An event has the id of another message, which differs.
            None if message.topic == EVENTS_TOPIC else (message.size, message.checksum),
            message.partition_key,
            message.key,
            message.content_type,
            self._headers(tenant, message),
        )

    def _headers(self, tenant: str, message: Message) -> dict[str, HeaderValue]:
        """The headers, with the id of the message that a copy comes from as a number."""
        headers = dict(message.headers)
        original = headers.get(_ORIGINAL)
        if isinstance(original, int):
            headers[_ORIGINAL] = self.below(tenant, original)
        return headers

    def payload(self, tenant: str, message: Message, payload: bytes | None) -> Plain:
        """The payload; of an event, with the message that it reports as a number."""
        if message.topic != EVENTS_TOPIC or payload is None:
            return payload
        body = msgspec.json.decode(payload, type=dict[str, Any])
        return {**body, "message_id": self.below(tenant, body["message_id"])}

    def delivery(self, tenant: str, delivery: Delivery) -> Plain:
        assert delivery.receipt not in self._receipts, "C1: a receipt is never reused"
        self._receipts[delivery.receipt] = len(self.receipts)
        self.receipts.append(delivery.receipt)
        return (
            delivery.queue,
            self.message(tenant, delivery.message),
            self.payload(tenant, delivery.message, delivery.payload),
            delivery.attempts,
            delivery.claimed_at,
            delivery.lease_deadline,
        )

    def outcome(self, outcome: Outcome) -> Plain:
        number = self._receipts[outcome.receipt]
        return (number, str(outcome.verdict), outcome.state, outcome.until)

    def snapshot(self, tenant: str, shown: Snapshot) -> Plain:
        return (
            shown.queue,
            str(shown.state),
            self.message(tenant, shown.message),
            (shown.attempts, shown.released),
            ("at", shown.at),
            (shown.claimed_at, shown.lease_deadline, shown.consumer),
            ("error", shown.error),
            self.payload(tenant, shown.message, shown.payload),
        )

    def info(self, info: QueueInfo) -> Plain:
        cursor = None if info.cursor is None else self.below(info.tenant, info.cursor)
        return (info.name, info.policy, info.filter_version, info.created_at, ("cursor", cursor))

    def ownership(self, own: Ownership) -> Plain:
        return (own.consumer, own.partitions, own.deadline)

    def route(self, tenant: str, reply: RouteReply) -> Plain:
        cursor = None if reply.cursor is None else self.below(tenant, reply.cursor)
        return (reply.scanned, reply.assigned, cursor)

    def replay(self, tenant: str, reply: ReplayReply, limit: int) -> Plain:
        sample = [self.snapshot(tenant, s) for s in reply.sample]
        return (reply.count, sample, reply.skipped if reply.count < limit else None)

    def result(self, tenant: str, result: Result | None) -> Plain:
        if result is None:
            return None
        return (
            self._number(tenant, result.message_id),
            *(result.status, result.result, result.error, result.attempts, result.at),
        )

    def stats(self, tenant: str, stats: QueueStats) -> Plain:
        def watermark(offset: int) -> int:
            return bisect_right(self.offsets(tenant), offset)

        return (
            {str(s): getattr(stats, s.value) for s in State},
            ("oldest", stats.oldest_available_ms),
            stats.in_flight_by_consumer,
            ("counters", stats.grants, stats.acks, stats.nacks, stats.failures),
            ("watermark", watermark(stats.watermark), "lag", stats.lag),
            [
                (
                    p.partition,
                    # The contract leaves open whether a partition without owner shows its epoch.
                    (p.owner, None if p.owner is None else p.epoch),
                    (p.unsettled, p.in_flight, watermark(p.watermark)),
                )
                for p in stats.partitions
            ],
        )

    # -- all observable state ----- ---------------------------------------------------

    async def browse(
        self, tenant: str, queue: str, state: State, where: Filter | None = None, page: int = 100
    ) -> Plain:
        """All pages of a peek."""
        found: list[Plain] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            reply = await self.engine.peek(tenant, queue, state, where, page, cursor, payloads=True)
            found += [self.snapshot(tenant, s) for s in reply.items]
            cursor = reply.cursor
            if cursor is None:
                return found
        raise AssertionError("the pages never end")

    async def log(self, tenant: str) -> Plain:
        """The whole log; payloads only of the newest entry of each message."""
        page = await self.engine.read_log(tenant, Offset(0), 1_000_000, payloads=True)
        self._looks += 1
        if not self._looks % _LOOKS_IN_BULK:
            await check_bulk(self.engine, tenant, page, histories=2)
        newest = {e.message.id: e.message.offset for e in page.entries}
        entries = [
            (
                self.message(tenant, e.message),
                self.payload(tenant, e.message, e.payload)
                if newest[e.message.id] == e.message.offset
                else None,
            )
            for e in page.entries
        ]
        return (entries, self.below(tenant, await self.engine.log_end(tenant)))

    async def histories(self, tenant: str) -> Plain:
        """Every event of every message, by message."""
        page = await self.engine.read_history(tenant, Offset(0), 1_000_000)
        return [(self._number(tenant, e.message_id), e.event) for e in page.entries]

    async def documents(self, kinds: Sequence[str]) -> Plain:
        """Every document of these kinds, listed and read one by one."""
        shown: dict[str, Plain] = {}
        for kind in kinds:
            listed = await self.engine.list_documents(kind)
            found = [(name, await self.engine.get_document(kind, name)) for name, _ in listed]
            assert found == list(listed)
            shown[kind] = listed
        return shown

    async def picture(self, tenant: str, *, scan: bool) -> Plain:
        """Every queue of a tenant; with ``scan`` also every delivery and the log."""
        shown: dict[str, Plain] = {
            "tenants": await self.engine.tenants(),
            "behind": await self.engine.behind(),
        }
        for info in await self.engine.list_queues(tenant):
            for name in (info.name, f"{info.name}.dlq"):
                stats = await self.engine.stats(tenant, name)
                shown[name] = (
                    self.info(await self.engine.get_queue(tenant, name)),
                    self.stats(tenant, stats),
                )
                if not scan:
                    continue
                for state in State:
                    shown[f"{name} {state}"] = await self.browse(tenant, name, state)
        if scan:
            shown["log"] = await self.log(tenant)
            shown["histories"] = await self.histories(tenant)
        return shown


def difference(expected: Plain, found: Plain, path: str = "") -> str | None:
    """Describe the first difference between two plain values; lists and tuples are alike."""
    if expected == found:
        return None
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in [*expected, *(k for k in found if k not in expected)]:
            if key not in expected or key not in found:
                return f"{path}[{key!r}] is only on one side"
            if (inner := difference(expected[key], found[key], f"{path}[{key!r}]")) is not None:
                return inner
        return None
    sequences = (list, tuple)
    if (
        isinstance(expected, sequences)
        and isinstance(found, sequences)
        and len(expected) == len(found)
    ):
        for n, (left, right) in enumerate(zip(expected, found, strict=True)):
            if (inner := difference(left, right, f"{path}[{n}]")) is not None:
                return inner
        return None
    return f"{path}\n  oracle: {expected!r}\n  engine: {found!r}"


async def attempt(call: Coroutine[object, object, Plain]) -> Plain:
    """The reply, or the error that was raised."""
    try:
        return await call
    except PenstockError as error:
        return Refused((type(error).__name__,))
