"""The backend: a task is a message of the queue with its name, due at its ``run_after``."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import msgspec
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, transaction
from django.utils import timezone
from msgspec import Struct

from penstock.errors import BadInput, PenstockError
from penstock.integrations.django.connecting import Connection
from penstock.integrations.django.framework import (
    BaseTaskBackend,
    InvalidTaskError,
    Task,
    TaskResult,
    TaskResultStatus,
    task_enqueued,
)
from penstock.integrations.django.results import read_result
from penstock.model.limits import DEFAULT_PRIORITY, MAX_PRIORITY, check_name

__all__ = ["PenstockBackend"]

#: Headers: the import path of a task's function, and the id of its result.
TASK_HEADER: Final = "task"
RESULT_HEADER: Final = "task_result"
_MAX_TASK_PRIORITY: Final = 100

Commit: TypeAlias = Literal["on_commit", "outbox", "immediately"]


class BackendOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OPTIONS of the backend in the setting TASKS."""

    url: str
    """A server, or a store."""
    credential: str | None = None
    credential_file: str | None = None
    """Read again when it changes."""
    ca: str | None = None
    """A file with the certificate authorities of an ``https`` server, if not the system's."""
    cert: str | None = None
    """A file with the client's certificate."""
    key: str | None = None
    """A file with its key, if it is not in the same file."""
    transaction: Commit = "on_commit"
    """When a task that is enqueued inside ``atomic()`` is published: after the commit, as part of
    the transaction (the store must be in the same database), or immediately."""
    database: str = DEFAULT_DB_ALIAS
    """The alias of the database whose transactions count."""
    policy: dict[str, Any] = {}
    """Fields of the policy with which a missing queue is created."""


class PenstockBackend(BaseTaskBackend):
    """Enqueues tasks, and reads their results."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        try:
            self.settings = msgspec.convert(self.options, BackendOptions)
        except msgspec.ValidationError as error:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS']: {error}.") from error
        tls = {"ca": self.settings.ca, "cert": self.settings.cert, "key": self.settings.key}
        self.connection = Connection(self.settings.url, self._credential, self.settings.policy, tls)

    def validate_task(self, task: Task[Any, Any]) -> None:
        """Also check that the name of the queue is one of Penstock's."""
        super().validate_task(task)
        try:
            check_name(task.queue_name, "queue_name")
        except BadInput as error:
            raise InvalidTaskError(str(error)) from error

    def enqueue(
        self, task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskResult[Any]:
        """Publish a call of the task; inside ``atomic()``, when the options say."""
        self.validate_task(task)
        result: TaskResult[Any] = TaskResult(
            task=task,
            # The queue is part of the id, since a result is looked up by nothing else.
            id=f"{task.queue_name}.{uuid.uuid4().hex}",  # noqa: TID251  (not part of a simulation)
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        match self.settings.transaction:
            case "on_commit":
                publish = partial(self._publish, result)
                transaction.on_commit(publish, using=self.settings.database)
            case "outbox":
                self._publish(result, transaction.get_connection(self.settings.database))
            case "immediately":
                self._publish(result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """What became of a task; ``TaskResultDoesNotExist`` if the store no longer knows it."""
        return read_result(self.connection.verbs, self.alias, result_id)

    def close(self) -> None:
        """Disconnect; the next call connects again."""
        self.connection.close()

    @property
    def _credential(self) -> str | None:
        if self.settings.credential_file is None:
            return self.settings.credential
        return f"file:{self.settings.credential_file}"

    def _publish(self, result: TaskResult[Any], connection: object | None = None) -> None:
        task = result.task
        due = None if task.run_after is None else round(task.run_after.timestamp() * 1000)
        try:
            self.connection.ensured(task.queue_name).publish(
                task.queue_name,
                {"args": result.args, "kwargs": result.kwargs},
                headers={TASK_HEADER: task.module_path, RESULT_HEADER: result.id},
                id=result.id,
                deliver_at=due,
                priority=to_priority(task.priority),
                auto_create=False,
                connection=connection if _is_open(connection) else None,
            )
        except PenstockError as error:
            error.add_note(
                f"The task {task.module_path} with the result {result.id} is not enqueued."
            )
            raise
        task_enqueued.send(type(self), task_result=result)


def to_priority(priority: int) -> int:
    """Django's -100 to 100 as Penstock's 0 to 9: 0 is the default, each other step is coarser."""
    if priority <= 0:
        return DEFAULT_PRIORITY + priority * DEFAULT_PRIORITY // _MAX_TASK_PRIORITY
    steps = MAX_PRIORITY - DEFAULT_PRIORITY
    return DEFAULT_PRIORITY - (-priority * steps // _MAX_TASK_PRIORITY)


def _is_open(connection: Any) -> bool:
    """Whether a transaction is open; outside of ``atomic()`` there is none to be part of."""
    return connection is not None and bool(connection.in_atomic_block)
