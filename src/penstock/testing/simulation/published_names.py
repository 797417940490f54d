"""The producers' names for messages: what ``find`` must answer after a publish was answered.

- Ids, in topics that remember them longer than any run (``policies``): one message has the id (P4).
- Keys: every message that was published with a key is found by it.

A message that has left the log is not found.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import Final, NamedTuple

from penstock.broker import Broker
from penstock.errors import UnknownMessage
from penstock.model.message import Message, MessageId, NewMessage, Published
from penstock.testing.simulation.policies import LINE, WORK

__all__ = ["Id", "Key", "PublishedNames"]

#: Names of each kind that are looked up at the end of a run.
_MAX_NAMES: Final = 20


class Id(NamedTuple):
    """An idempotency id in the scope of its topic."""

    tenant: str
    topic: str
    partition: str
    id: str

    @classmethod
    def of(cls, tenant: str, topic: str, partition_key: str | None, id: str) -> Id | None:
        """The name, if its topic remembers it for the whole run."""
        if topic not in (WORK, LINE):
            return None
        return cls(tenant, topic, (partition_key or "") if topic == LINE else "", id)


class Key(NamedTuple):
    """A key in its topic."""

    tenant: str
    topic: str
    key: str


class PublishedNames:
    """The names in the durable replies of one run."""

    def __init__(self) -> None:
        self._ids: dict[Id, MessageId] = {}
        self._keys: dict[Key, set[MessageId]] = {}
        self.violations: list[str] = []

    async def recorded(
        self,
        tenant: str,
        topic: str,
        messages: Sequence[NewMessage],
        publish: Awaitable[tuple[Published, ...]],
    ) -> tuple[Published, ...]:
        """Wait for a durable reply, record its names, and return it."""
        reply = await publish
        for new, item in zip(messages, reply, strict=False):
            name = None if new.id is None else Id.of(tenant, topic, new.partition_key, new.id)
            if name is not None and (known := self._ids.setdefault(name, item.id)) != item.id:
                self.violations.append(f"P4: {name} is message {known}, and message {item.id}")
            # A duplicate is the first message, which may have another key.
            if new.key is not None and not item.duplicate:
                self._keys.setdefault(Key(tenant, topic, new.key), set()).add(item.id)
        return reply

    # -- find --------------------------------------------------------------------------

    async def find_id(
        self, broker: Broker, topic: str, partition_key: str | None, id: str
    ) -> list[str]:
        """Find a message by id; returns the violations."""
        name = Id.of(broker.tenant, topic, partition_key, id)
        known = None if name is None else self._ids.get(name)
        page = await broker.find(topic, id=id, partition_key=partition_key)
        found = _judge_messages(page.messages, topic)
        if topic == LINE:
            found += [
                f"P4: {name} is {message}"
                for message in page.messages
                if (message.partition_key or "") != (partition_key or "")
            ]
        ids = [message.id for message in page.messages]
        if known is None or ids == [known]:
            return found
        if ids or await _newest(broker, known) is not None:
            found.append(f"P4: {name} is message {known}, but find returns {ids}")
        return found

    async def find_key(self, broker: Broker, topic: str, key: str) -> list[str]:
        """Find messages by key; returns the violations."""
        known = set(self._keys.get(Key(broker.tenant, topic, key), ()))
        # Readers do not see beyond the end of the log, even if it was published.
        end = await broker.log_end()
        messages: dict[MessageId, Message] = {}
        start: int | None = 0
        while start is not None:
            page = await broker.find(topic, key=key, start=start)
            messages.update((message.id, message) for message in page.messages)
            start = page.next_offset
        found = _judge_messages(messages.values(), topic, key)
        for missing in sorted(known - messages.keys()):
            newest = await _newest(broker, missing)
            if newest is not None and newest.offset < end:
                found.append(
                    f"find: message {missing} of {topic!r} is not found by its key {key!r}"
                )
        return found

    async def judge(self, server: Broker) -> list[str]:
        """Find what was published, when all clients are done."""
        found = list(self.violations)
        for name in list(self._ids)[-_MAX_NAMES:]:
            broker = server.for_tenant(name.tenant)
            found += await self.find_id(broker, name.topic, name.partition, name.id)
        for key in list(self._keys)[-_MAX_NAMES:]:
            found += await self.find_key(server.for_tenant(key.tenant), key.topic, key.key)
        return found


async def _newest(broker: Broker, message: MessageId) -> Message | None:
    """The message as it is now; None if the log does not have it."""
    try:
        return (await broker.message(message)).message
    except UnknownMessage:
        return None


def _judge_messages(messages: Iterable[Message], topic: str, key: str | None = None) -> list[str]:
    return [
        f"find: message {message.id} of {message.topic!r} with the key {message.key!r} was found "
        f"in {topic!r} by the key {key!r}"
        for message in messages
        if message.topic != topic or (key is not None and message.key != key)
    ]
