"""The decorators of an app: workers, tasks, periodic tasks and middleware.

Each checks its arguments when it is called (E1), so a mistake is an error at import, not when
the first message arrives.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, Unpack, overload

from penstock.api import QueueApi
from penstock.errors import BadInput
from penstock.model.claim_queues import check_one_or_more_queues
from penstock.model.delivery import ClaimOrder
from penstock.model.duration import Duration, to_ms
from penstock.model.limits import check_name, check_whole
from penstock.model.policy_fields import WorkerPolicyFields
from penstock.model.queue import Start
from penstock.worker.context import Context
from penstock.worker.handler import Function, Handler
from penstock.worker.middleware import Middleware, Observe, timing, tracing
from penstock.worker.periodic import (
    MAX_CATCH_UP_MS,
    MAX_EVERY_MS,
    Periodic,
    to_interval_ms,
    to_schedule,
)
from penstock.worker.registration import (
    Registration,
    Rules,
    check_registration,
    check_rules,
    encode_result,
)
from penstock.worker.task import Task
from penstock.worker.task_handler import TaskHandler, encode_json
from penstock.worker.task_queue import DEFAULT_TASK_QUEUE, TaskQueue

__all__ = ["Registry"]

F = TypeVar("F", bound=Function)
M = TypeVar("M", bound=Middleware)
P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_CONCURRENCY: Final = 8
#: How old the latest missed slot of a periodic task may be when a worker starts.
DEFAULT_CATCH_UP: Final = timedelta(hours=1)

_Errors = type[Exception] | Sequence[type[Exception]]


class TaskDecorator(Protocol):
    """Turns a function into a task; a first parameter of type ``Context`` is not sent."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]
    ) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R]) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Task[P, R]: ...


class Registry(ABC):
    """The handlers, tasks and middleware of an app."""

    def __init__(self, observe: Observe | None) -> None:
        self._registrations: dict[str, Registration] = {}
        self._task_queues: dict[str, TaskQueue] = {}
        self._periodics: dict[str, Periodic] = {}
        self._middleware: list[Middleware] = [tracing, timing(observe)]

    @property
    @abstractmethod
    def verbs(self) -> QueueApi:
        """The verbs; ``BadInput`` while the app is not connected."""

    @property
    def registrations(self) -> tuple[Registration, ...]:
        """The registrations, in order; queues of tasks come last."""
        queues = (queue.registration for queue in self._task_queues.values() if len(queue))
        # A registration of several queues is there once per queue.
        workers = {item.queues: item for item in self._registrations.values()}
        return (*workers.values(), *queues)

    @property
    def periodics(self) -> tuple[Periodic, ...]:
        """The periodic tasks, in order."""
        return tuple(self._periodics.values())

    @property
    def layers(self) -> tuple[Middleware, ...]:
        """The middleware, the outermost first."""
        return tuple(self._middleware)

    def worker(
        self,
        queue: str | Sequence[str],
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        max_in_flight: int | None = None,
        lease_ms: Duration | None = None,
        order: ClaimOrder = "given",
        where: str | None = None,
        timeout_ms: Duration | None = None,
        retry_ms: Duration | Sequence[Duration] = (),
        reject_on: _Errors = (),
        filter: str | None = None,
        start: str | Start = "latest",
        **policy: Unpack[WorkerPolicyFields],
    ) -> Callable[[F], F]:
        """Register a function that handles the deliveries of ``queue``, one name or a list.

        Of several queues, ``given`` uses a queue only if those before it have too few deliveries;
        ``fair`` gives every queue its turn. ``where`` is a filter: only waiting deliveries that
        match are handled here.

        ``max_in_flight`` bounds the deliveries that are handled or prefetched; it defaults to
        twice the concurrency. A handling that takes longer than ``timeout_ms`` is cancelled and
        nacked; a thread cannot be cancelled, so its delivery waits for its lease to lapse.
        ``retry_ms`` are the delays after the first, second … failed attempt, instead of the
        queue's backoff. Durations are milliseconds or ``timedelta``. ``reject_on`` are exceptions
        that fail the delivery immediately. With ``filter``, a missing queue is created, with
        ``start`` and the fields of ``policy``; an existing queue is not changed. A worker of
        several queues creates none.
        """
        queues = check_one_or_more_queues(queue)
        names = sys._getframe(1).f_locals  # noqa: SLF001  (annotations may name what is local there)

        def register(function: F) -> F:
            for name in queues:
                self._check_free(name)
            rules = _rules(Handler(function, names), timeout_ms, retry_ms, reject_on)
            registration = Registration(
                queues=queues,
                name=rules.handler.name,
                choose=lambda _: rules,
                concurrency=concurrency,
                max_in_flight=2 * concurrency if max_in_flight is None else max_in_flight,
                lease_ms=to_ms(lease_ms),
                order=order,
                where=where,
                filter=filter,
                start=start,
                policy=policy,
            )
            check_registration(registration)
            self._registrations.update(dict.fromkeys(queues, registration))
            return function

        return register

    def task_queue(
        self,
        queue: str,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        max_in_flight: int | None = None,
        lease_ms: Duration | None = None,
        **policy: Unpack[WorkerPolicyFields],
    ) -> None:
        """Set the options of a queue of tasks; call it before its first task is registered.

        A missing queue is created with the fields of ``policy``; an existing one is not changed.
        """
        self._check_free(queue)
        self._task_queues[queue] = TaskQueue(
            queue,
            concurrency=concurrency,
            max_in_flight=max_in_flight,
            lease_ms=to_ms(lease_ms),
            policy=policy,
        )

    def task(
        self,
        name: str | None = None,
        *,
        queue: str = DEFAULT_TASK_QUEUE,
        timeout_ms: Duration | None = None,
        retry_ms: Duration | Sequence[Duration] = (),
        reject_on: _Errors = (),
    ) -> TaskDecorator:
        """Register a function as a task of ``queue``; several tasks may share a queue.

        ``name`` identifies it in messages; by default it is the function's name. The other
        options are those of ``worker``.
        """
        names = sys._getframe(1).f_locals  # noqa: SLF001  (annotations may name what is local there)

        def register(function: Function) -> Task[Any, Any]:
            handler = _task_handler(function, name, names)
            return self._add_task(queue, _rules(handler, timeout_ms, retry_ms, reject_on), handler)

        return register

    def periodic(
        self,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        catch_up: Duration = DEFAULT_CATCH_UP,
        ttl_ms: Duration | None = None,
        name: str | None = None,
        queue: str = DEFAULT_TASK_QUEUE,
        timeout_ms: Duration | None = None,
        retry_ms: Duration | Sequence[Duration] = (),
        reject_on: _Errors = (),
    ) -> TaskDecorator:
        """Register a task without arguments that fires on a schedule, once across all workers.

        ``cron`` has five fields and is evaluated in ``timezone``; ``every`` fires at multiples of
        the interval since 1970 UTC. When a worker starts, the latest missed slot is fired if it
        is at most ``catch_up`` old. A slot that no worker has begun within ``ttl_ms`` expires.
        The header ``slot`` has the time of the slot, in epoch milliseconds.
        """
        names = sys._getframe(1).f_locals  # noqa: SLF001  (annotations may name what is local there)
        schedule = to_schedule(cron, every, timezone)
        catch_up_ms = to_interval_ms("catch_up", catch_up, 0, MAX_CATCH_UP_MS)
        ttl_ms = to_ms(ttl_ms)
        if ttl_ms is not None:
            check_whole("ttl_ms", ttl_ms, 1, MAX_EVERY_MS)

        def register(function: Function) -> Task[Any, Any]:
            handler = _task_handler(function, name, names)
            if handler.needs_arguments:
                raise BadInput(
                    f"{handler.name} has parameters without a default; a periodic task is called "
                    "without arguments.",
                    field="handler",
                )
            if handler.name in self._periodics:
                raise BadInput(f"There is a periodic task {handler.name!r} already.", field="name")
            task = self._add_task(queue, _rules(handler, timeout_ms, retry_ms, reject_on), handler)
            self._periodics[task.name] = Periodic(
                task=task.name,
                queue=queue,
                message=task.message(),
                schedule=schedule,
                catch_up_ms=catch_up_ms,
                ttl_ms=ttl_ms,
            )
            return task

        return register

    def middleware(self, layer: M) -> M:
        """Register middleware around every handler, inside of those registered before."""
        if not callable(layer):
            raise BadInput("Middleware is an async function (context, next).", field="middleware")
        self._middleware.append(layer)
        return layer

    def _add_task(self, queue: str, rules: Rules, handler: TaskHandler) -> Task[Any, Any]:
        if queue not in self._task_queues:
            self.task_queue(queue)
        self._task_queues[queue].add(rules)
        return Task(self, handler, queue)

    def _check_free(self, queue: str) -> None:
        if queue in self._registrations:
            raise BadInput(f"There is a handler for {queue!r} already.", field="queue")
        if queue in self._task_queues:
            raise BadInput(f"{queue!r} is a queue of tasks already.", field="queue")


def _task_handler(function: Function, name: str | None, names: Mapping[str, object]) -> TaskHandler:
    if name is not None and not isinstance(name, str):
        raise BadInput("Write @app.task(), with parentheses.", field="name")
    own = getattr(function, "__name__", None) if name is None else name
    return TaskHandler(function, check_name(own or "", "name"), names)


def _rules(
    handler: Handler,
    timeout_ms: Duration | None,
    retry_ms: Duration | Sequence[Duration],
    reject_on: _Errors,
) -> Rules:
    delays = retry_ms if isinstance(retry_ms, list | tuple) else (retry_ms,)
    errors = reject_on if isinstance(reject_on, list | tuple) else (reject_on,)
    rules = Rules(
        handler=handler,
        timeout_ms=to_ms(timeout_ms),
        retry_ms=tuple(map(to_ms, delays)),
        reject_on=tuple(errors),
        encode_result=encode_json if isinstance(handler, TaskHandler) else encode_result,
    )
    return check_rules(rules)
