"""One tenant in memory: its queues, topics and log. Nothing crosses tenants (T1)."""

from __future__ import annotations

from penstock.errors import UnknownQueue
from penstock.filters import FilterIndex
from penstock.model.limits import DLQ_SUFFIX
from penstock.model.queue import TopicPolicy
from penstock.storage.keyvalue.log import TenantLog
from penstock.storage.keyvalue.queue import Queue

__all__ = ["Tenant"]

_DEFAULT_TOPIC = TopicPolicy()


class Tenant:
    """Everything that belongs to one tenant."""

    __slots__ = ("behind", "bounded", "index", "log", "name", "queues", "topics")

    def __init__(self, name: str, log: TenantLog) -> None:
        self.name = name
        self.log = log
        self.queues: dict[str, Queue] = {}
        #: How many of the queues have a ``max_depth``.
        self.bounded = 0
        #: The filters of the caught-up queues, which publish routes to (R1).
        self.index: FilterIndex[Queue] = FilterIndex()
        #: The filters of the queues that ``route`` still has to catch up.
        self.behind: FilterIndex[Queue] = FilterIndex()
        self.topics: dict[str, TopicPolicy] = {}

    @property
    def unindexed(self) -> int:
        """How many filters are evaluated for every message."""
        return sum(not queue.filter.indexed for queue in self.queues.values())

    def queue(self, name: str) -> Queue:
        """The queue or dead-letter queue of that name."""
        queue = self.queues.get(name)
        if queue is not None:
            return queue
        if name.endswith(DLQ_SUFFIX):
            home = self.queues.get(name[: -len(DLQ_SUFFIX)])
            if home is not None and home.dead is not None:
                return home.dead
        raise UnknownQueue(f"There is no queue {name!r}.", field="queue")

    def topic(self, name: str) -> TopicPolicy:
        """The topic's policy, or the default."""
        return self.topics.get(name, _DEFAULT_TOPIC)

    def add(self, queue: Queue) -> None:
        self.queues[queue.name] = queue
        self.bounded += queue.policy.max_depth is not None
        self._index(queue)

    def remove(self, queue: Queue) -> None:
        del self.queues[queue.name]
        self.bounded -= queue.policy.max_depth is not None
        self._drop(queue)

    def reindex(self, queue: Queue) -> None:
        """Update the index after the filter changed or the queue caught up."""
        self._drop(queue)
        self._index(queue)

    def _index(self, queue: Queue) -> None:
        index = self.index if queue.cursor is None else self.behind
        index.add(queue.name, queue.filter, queue)

    def _drop(self, queue: Queue) -> None:
        for index in (self.index, self.behind):
            if queue.name in index:
                index.remove(queue.name)
