"""Keys: the next message with the same key replaces a message in place.

A key is open from the publish of its message until a delivery of the message is settled or purged.
While a delivery is in flight, the key's next publish is a new message. A replacing publish locks
the deliveries of the message first and the key afterwards, in the same order as a settle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from penstock.filters import parse
from penstock.model.checksum import checksum
from penstock.model.decisions import expiry_in_queue
from penstock.model.message import NO_HEADERS, Message, NewMessage, Outgoing
from penstock.storage.sql.append import Entry, OpenKey
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import RetryTransaction
from penstock.storage.sql.deliveries import DeliveryGroup, Phase, segment_of
from penstock.storage.sql.segments import EntryMetadata
from penstock.storage.sql.work import Work

__all__ = ["Keys", "hold_keys", "newest_entries"]

_WAITING: Final = (Phase.FRESH, Phase.RETURNED, Phase.DELAYED)


class Keys:
    """The keys of one transaction."""

    def __init__(self, core: Core, work: Work, created: Mapping[str, Queue]) -> None:
        self._core = core
        self.work = work
        #: Queues that this transaction creates.
        self._created = created
        self.open: dict[tuple[str, str], OpenKey] = {}
        #: Keys that have a row, even if the key is closed.
        self._rows: set[tuple[str, str]] = set()
        self.entries: dict[tuple[str, str], Entry] = {}
        self._wanted: set[tuple[str, str]] = set()

    def queues(self) -> list[Queue]:
        """The queues of the tenant, including those that this transaction creates."""
        return [*self.work.tenant.queues.values(), *self._created.values()]

    @property
    def pending(self) -> bool:
        """Whether there are keys to write."""
        return bool(self.entries)

    def layer(self) -> _Layer:
        """The keys from the view of one batch, to be accepted or discarded with it."""
        return _Layer(self)

    async def read(self, outgoing: Sequence[Outgoing]) -> None:
        """Look up the keys of these messages, and lock the messages they denote."""
        self._wanted = {
            (one.topic, new.key) for one in outgoing for new in one.messages if new.key is not None
        }
        await self.read_again()

    async def read_again(self) -> None:
        """Look up the same keys again after this transaction has written some of them."""
        wanted = self._wanted
        if not wanted:
            return
        self.open.clear()
        before = await self._find(wanted, "find_keys")
        if not before:
            return
        held = await self._lock(before.values())
        if await self._find(wanted, "lock_keys") != before:
            raise RetryTransaction("a key was closed or replaced meanwhile")
        if await self._deliveries(before.values()) != {(m, q) for m in held for q in held[m]}:
            raise RetryTransaction("a delivery of a key was split off or added meanwhile")
        self._rows |= before.keys()
        newest = await newest_entries(self.work, before.values())
        offsets = {m: newest.get(m, m) for m in before.values()}
        messages = await self._core.segments.messages(
            self.work.session, self.work.tenant.number, offsets.values()
        )
        for named, message in before.items():
            found = messages.get(offsets[message])
            # If no queue has the message any more there is nothing to replace.
            if found is not None and message in held and _waits(held[message]):
                self.open[named] = OpenKey(found, held[message])

    async def _find(
        self, wanted: Iterable[tuple[str, str]], statement: str
    ) -> dict[tuple[str, str], int]:
        by_topic: dict[str, list[bytes]] = {}
        for topic, key in sorted(wanted):
            by_topic.setdefault(topic, []).append(key.encode())
        found: dict[tuple[str, str], int] = {}
        for topic, keys in by_topic.items():
            rows = await self.work.session.fetch(
                statement, tenant=self.work.tenant.number, topic=topic, keys=keys
            )
            found.update({(topic, key.decode()): message for key, message in rows})
        return found

    async def _lock(
        self, messages: Iterable[int]
    ) -> dict[int, dict[int, tuple[DeliveryGroup, int]]]:
        """The deliveries of these messages, by message and queue."""
        places = {segment_of(message): message for message in messages}
        rows = await self.work.session.fetch(
            "lock_segment_groups",
            queues=sorted(queue.number for queue in self.queues()),
            segments=sorted({segment for segment, _ in places}),
            phases=[int(phase) for phase in Phase],
        )
        held: dict[int, dict[int, tuple[DeliveryGroup, int]]] = {}
        for group in self.work.hold_all(rows):
            for index in group.members:
                message = places.get((group.segment, index))
                if message is not None:
                    held.setdefault(message, {})[group.queue] = (group, index)
        return held

    async def _deliveries(self, messages: Iterable[int]) -> set[tuple[int, int]]:
        """The (message, queue) pairs of the deliveries that exist now.

        A group may have been split while this transaction waited for its lock, and a route or a
        replay may have added a delivery that could not be locked. Neither is possible once all
        groups are held and the keys are locked.
        """
        wanted = set(messages)
        rows = await self.work.session.fetch(
            "segment_groups",
            queues=sorted(queue.number for queue in self.queues()),
            segments=sorted({segment_of(message)[0] for message in wanted}),
        )
        groups = [DeliveryGroup.read(row) for row in rows]
        return {(int(m), group.queue) for group in groups for m in group.ids() if m in wanted}

    # -- writing -----------------------------------------------------------------------

    async def write(self) -> None:
        """Write the current message of every key."""
        work = self.work
        tenant = work.tenant.number
        opened: list[tuple[object, ...]] = []
        closed: list[int] = []
        newest: list[tuple[object, ...]] = []
        for (topic, key), entry in self.entries.items():
            if entry.replaces is not None:
                newest.append((int(entry.id), tenant, int(entry.offset)))
                # A message that joins another queue must not leave the log meanwhile (G1).
                segment, _ = segment_of(entry.id)
                await work.session.fetch("share_segments", numbers=[segment])
                self._move(entry)
                stays = any(entry.replaces.held) or bool(entry.targets)
                if not stays:
                    closed.append(int(entry.id))
            elif entry.targets:
                statement_row = (tenant, topic, key.encode(), int(entry.id))
                opened.append(statement_row)
            elif (topic, key) in self._rows:
                await work.session.run("close_key", tenant=tenant, topic=topic, key=key.encode())
        fresh = [row for row in opened if (row[1], _text(row[2])) not in self._rows]
        again = [row for row in opened if (row[1], _text(row[2])) in self._rows]
        await work.session.write("open_keys", fresh)
        await work.session.write("put_keys", again)
        await work.session.write("put_newest", newest)
        if closed:
            await work.session.run("close_keys", messages=closed)
        self._rows |= {(topic, key) for topic, key in self.entries}
        self.entries.clear()

    def _move(self, entry: Entry) -> None:
        """Move the deliveries of a replaced message to the queues that take it now."""
        work, opened = self.work, entry.replaces
        assert opened is not None
        keep = {queue.number: queue for queue in entry.targets}
        metadata = entry.metadata
        for number, (group, index) in list(opened.held.items()):
            if number not in keep:
                work.drop(group, [index])
                work.ended.add(number)
                del opened.held[number]
                continue
            record = replace(
                group.record,
                entry=int(entry.offset),
                expires_at=expiry_in_queue(keep[number].policy, metadata.expires_at, work.now),
                max_attempts=metadata.max_attempts,
            )
            work.move(group, [index], group.phase, record)
        for queue in entry.targets:
            if queue.number not in opened.held:
                work.add_message(
                    queue,
                    opened.message,
                    metadata.expires_at,
                    metadata.max_attempts,
                    int(entry.offset),
                )


class _Layer:
    """The keys from the view of one batch."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._entries: dict[tuple[str, str], Entry] = {}

    def is_pending(self, topic: str, key: str) -> bool:
        """Whether this transaction has published the key but not written it yet."""
        named = (topic, key)
        return named in self._entries or named in self._keys.entries

    def opened(self, entry: Entry) -> None:
        """Record a new message with a key."""
        assert entry.metadata.key is not None
        self._entries[entry.metadata.topic, entry.metadata.key] = entry

    def replace(
        self, topic: str, new: NewMessage, expires_at: int | None, added: Counter[int]
    ) -> Entry | None:
        """The entry that replaces the open message of the key, if there is one."""
        assert new.key is not None
        opened = self._keys.open.get((topic, new.key))
        if opened is None:
            return None
        old = opened.message
        total = checksum(new.payload)
        headers = dict(new.headers) if new.headers else None
        message = replace(
            old,
            headers=NO_HEADERS if headers is None else headers,
            content_type=new.content_type,
            expires_at=expires_at,
            max_attempts=new.max_attempts,
            size=len(new.payload),
            checksum=total,
        )
        entry_metadata = EntryMetadata(
            topic,
            old.priority,
            len(new.payload),
            total,
            old.deliver_at,
            expires_at,
            old.partition_key,
            old.key,
            new.content_type,
            headers,
            int(old.id),
            old.published_at,
            new.max_attempts,
        )
        targets: list[Queue] = []
        behind = False
        for queue in self._keys.queues():
            if not parse(queue.policy.filter).matches(message):
                continue
            if queue.number in opened.held:
                targets.append(queue)
            elif queue.cursor is None:
                targets.append(queue)
                added[queue.number] += 1
            else:
                behind = True
        entry = Entry(entry_metadata, new.payload, targets, behind, replaces=opened)
        self._entries[topic, new.key] = entry
        return entry

    def accept(self) -> None:
        """Accept the planned part of the batch."""
        self._keys.entries.update(self._entries)
        self._entries = {}


async def newest_entries(work: Work, messages: Iterable[int]) -> dict[int, int]:
    """The newest entries of the messages that were replaced."""
    rows = await work.session.fetch("find_newest", messages=sorted(messages))
    return {int(message): int(entry) for message, entry in rows}


async def hold_keys(work: Work, queue: Queue, messages: Sequence[Message]) -> Sequence[Message]:
    """Filter messages that are about to be added to a queue: drop those replaced meanwhile.

    A replacing publish adds the message to its queues itself. So a caller that adds a message
    from the log locks its key first, and adds it only if it is unchanged.
    """
    keyed = {message.id: message for message in messages if message.key is not None}
    by_topic: dict[str, set[bytes]] = {}
    for message in keyed.values():
        assert message.key is not None
        by_topic.setdefault(message.topic, set()).add(message.key.encode())
    if not keyed:
        return messages
    for topic, keys in sorted(by_topic.items()):
        await work.session.fetch(
            "lock_keys", tenant=work.tenant.number, topic=topic, keys=sorted(keys)
        )
    newest = await newest_entries(work, keyed)
    rows = await work.session.fetch(
        "segment_groups",
        queues=[queue.number],
        segments=sorted({segment_of(message)[0] for message in keyed}),
    )
    there = {message for row in rows for message in DeliveryGroup.read(row).ids()}
    return [
        message
        for message in messages
        if message.id not in keyed
        or (message.id not in there and newest.get(message.id, message.id) == message.offset)
    ]


def _waits(held: Mapping[int, tuple[DeliveryGroup, int]]) -> bool:
    """Whether no delivery is in flight."""
    return all(group.phase in _WAITING for group, _ in held.values())


def _text(key: object) -> str:
    assert isinstance(key, bytes)
    return key.decode()
