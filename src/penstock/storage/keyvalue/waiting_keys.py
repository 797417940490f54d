"""Where the messages of keys wait unclaimed, as one publish finds them.

A message may wait in thousands of queues, so the queues can be found ahead, in steps. The results
hold while no other verb runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from penstock.model.message import Message
from penstock.storage.contract import Outgoing
from penstock.storage.keyvalue.core import Core
from penstock.storage.keyvalue.keys import claim_id_of, open_key
from penstock.storage.keyvalue.open_keys import OpenKey
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.tenant import Tenant

__all__ = ["WaitingKeys"]


class WaitingKeys:
    """Finds the waiting messages of a tenant's keys."""

    def __init__(self, core: Core, tenant: Tenant) -> None:
        self._core = core
        self._tenant = tenant
        #: By topic and key, what was found ahead.
        self._ahead: dict[tuple[str, str], tuple[list[Queue], Message | None]] = {}

    def find(self, topic: str, key: str) -> tuple[list[Queue], Message] | None:
        """The queues where the key's message waits unclaimed, and the message; None if none do."""
        found = self._ahead.get((topic, key))
        if found is None:
            record = self._record(topic, key)
            if record is None:
                return None
            found = list(self._queues(record)), self._message(record)
        queues, message = found
        return None if not queues or message is None else (queues, message)

    def replaced(self, topic: str, key: str) -> Message | None:
        """The message that a new message with this key would replace now."""
        record = self._record(topic, key)
        if record is None or next(self._queues(record), None) is None:
            return None
        return self._message(record)

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
                    queues += some
                    yield

    def _record(self, topic: str, key: str) -> OpenKey | None:
        value = self._core.stage.get(open_key(self._tenant.name, topic, key))
        return None if value is None else OpenKey.decode(value)

    def _queues(self, record: OpenKey) -> Iterator[Queue]:
        for name in record.queues:
            queue = self._tenant.queues.get(name)
            if queue is not None and _waits(queue, record.priority, record.message_id):
                yield queue

    def _message(self, record: OpenKey) -> Message | None:
        found = self._core.log.find(self._tenant.name, record.message_id)
        return None if found is None else found[0]


def _waits(queue: Queue, priority: int, message_id: int) -> bool:
    claim_id = claim_id_of(queue.policy.bucket_size, priority, message_id)
    return queue.due_of(claim_id) is not None or queue.shelf.find(claim_id) is not None
