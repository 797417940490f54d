"""A queue of named tasks: its options, and the task of a delivery."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from penstock.errors import BadInput
from penstock.model.delivery import Delivery
from penstock.model.limits import check_queue_name, shown
from penstock.model.policy_fields import WorkerPolicyFields
from penstock.model.settling_exceptions import Reject
from penstock.worker.context import Context
from penstock.worker.handler import Handler
from penstock.worker.registration import Registration, Rules, check_registration
from penstock.worker.task import TASK_HEADER

__all__ = ["DEFAULT_TASK_QUEUE", "TaskQueue"]

#: The queue of tasks that name none.
DEFAULT_TASK_QUEUE: Final = "tasks"
#: Names of tasks in an error.
_SHOWN_TASKS: Final = 20


class TaskQueue:
    """The tasks of one queue."""

    def __init__(
        self,
        queue: str,
        *,
        concurrency: int,
        max_in_flight: int | None,
        lease_ms: int | None,
        policy: WorkerPolicyFields,
    ) -> None:
        self._options = Registration(
            queues=(check_queue_name(queue),),
            name=queue,
            choose=self._choose,
            concurrency=concurrency,
            max_in_flight=2 * concurrency if max_in_flight is None else max_in_flight,
            lease_ms=lease_ms,
            # The filter that the first publish to a topic without a queue creates one with.
            filter=f"topic = '{queue}'",
            start="latest",
            policy=policy,
        )
        check_registration(self._options)
        self._tasks: dict[str, Rules] = {}
        self._unknown = Rules(handler=Handler(self._refuse))

    @property
    def registration(self) -> Registration:
        """The registration of the queue."""
        names = ", ".join(list(self._tasks)[:_SHOWN_TASKS])
        return replace(self._options, name=names or self._options.label)

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, rules: Rules) -> None:
        """Add a task."""
        name = rules.handler.name
        if name in self._tasks:
            raise BadInput(
                f"There is a task {name!r} in queue {self._options.label!r} already.", field="name"
            )
        self._tasks[name] = rules

    def _choose(self, delivery: Delivery) -> Rules:
        name = delivery.message.headers.get(TASK_HEADER)
        rules = self._tasks.get(name) if isinstance(name, str) else None
        return self._unknown if rules is None else rules

    def _refuse(self, context: Context) -> None:
        known = ", ".join(sorted(self._tasks)[:_SHOWN_TASKS])
        name = context.headers.get(TASK_HEADER)
        if name is None:
            raise Reject(
                f"The message has no header {TASK_HEADER!r}; the tasks of queue "
                f"{context.queue!r} are {known}."
            )
        raise Reject(f"There is no task {shown(name)} in queue {context.queue!r}, only {known}.")
