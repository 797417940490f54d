"""Where the messages of keys wait, as one publish finds them.

A message that is in flight in any queue cannot be replaced, except by the publish of the settle
that returns it.

A message may wait in thousands of queues, so the queues can be found ahead, in steps. The results
hold while no other verb runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice

from penstock.model.delivery import Receipt
from penstock.model.message import Message
from penstock.storage.contract import Outgoing
from penstock.storage.keyvalue.core import Core
from penstock.storage.keyvalue.keys import open_key
from penstock.storage.keyvalue.open_keys import OpenKey
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.tenant import Tenant

__all__ = ["Replacement", "WaitingKeys"]


class Replacement:
    """A keyed message that replaces a waiting one."""

    __slots__ = ("kept", "left")

    def __init__(self, kept: list[Queue], left: list[Queue]) -> None:
        #: The queues where it is replaced in place, and those that it leaves.
        self.kept = kept
        self.left = left


class WaitingKeys:
    """Finds the waiting messages of a tenant's keys."""

    def __init__(self, core: Core, tenant: Tenant) -> None:
        self._core = core
        self._tenant = tenant
        #: Receipts whose deliveries return to their queues before the publish takes effect.
        self.returning: AbstractSet[Receipt] = frozenset()
        #: By topic and key, what was found ahead.
        self._ahead: dict[tuple[str, str], tuple[list[Queue], Message | None]] = {}

    def find(self, topic: str, key: str) -> tuple[list[Queue], Message] | None:
        """The queues where the key's message waits, and the message.

        None if it waits in no queue, or if it is in flight in one.
        """
        found = self._ahead.get((topic, key))
        if found is None:
            record = self._record(topic, key)
            if record is None:
                return None
            waiting = list(self._queues(record))
            if _has_none(waiting):
                return None
            found = [queue for queue in waiting if queue], self._message(record)
        queues, message = found
        return None if not queues or message is None else (queues, message)

    def replaced(self, topic: str, key: str) -> Message | None:
        """The message that a new message with this key would replace now."""
        record = self._record(topic, key)
        if record is None:
            return None
        queues = list(self._queues(record))
        return self._message(record) if queues and not _has_none(queues) else None

    def find_ahead(self, outgoing: Outgoing, step: int) -> Iterator[None]:
        """Find the queues for all keys of a publish, ``step`` queues per step."""
        for new in outgoing.messages:
            if new.key is None or (outgoing.topic, new.key) in self._ahead:
                continue
            record = self._record(outgoing.topic, new.key)
            if record is not None:
                queues: list[Queue] = []
                self._ahead[outgoing.topic, new.key] = queues, self._message(record)
                waiting = self._queues(record)
                while some := list(islice(waiting, step)):
                    if _has_none(some):
                        self._ahead[outgoing.topic, new.key] = [], None
                        break
                    queues += filter(None, some)
                    yield

    def _record(self, topic: str, key: str) -> OpenKey | None:
        value = self._core.stage.get(open_key(self._tenant.name, topic, key))
        return None if value is None else OpenKey.decode(value)

    def _queues(self, record: OpenKey) -> Iterator[Queue | None]:
        """The queues where the message waits; None for a queue where it is in flight."""
        for name in record.queues:
            queue = self._tenant.queues.get(name)
            if queue is None:
                continue
            claim_id = queue.claim_id(record.priority, record.message_id)
            held = queue.shelf.held(claim_id)
            if held is not None:
                yield queue if held.receipt in self.returning else None
            elif queue.due_of(claim_id) is not None or queue.shelf.find(claim_id) is not None:
                yield queue

    def _message(self, record: OpenKey) -> Message | None:
        found = self._core.log.find(self._tenant.name, record.message_id)
        return None if found is None else found[0]


def _has_none(queues: Sequence[Queue | None]) -> bool:
    """Whether one of them is None, without comparing queues by value."""
    return any(queue is None for queue in queues)
