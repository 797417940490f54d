"""A dramatiq broker: messages are messages of queues, delays are delays, failed ones dead letters.

::

    broker = PenstockBroker("http://localhost:8080")
    broker.add_middleware(Results(backend=PenstockResults(broker)))
    dramatiq.set_broker(broker)

There are no delay queues: a delayed message waits in the store, not in the memory of a worker. A
message that is sent again while a worker handles it, as the middleware ``Retries`` does, has an
idempotency id made of the handled message's id, so a worker that is killed between sending it
and the ack does not double it (P4).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from penstock import sync
from penstock.api import QueueApi
from penstock.consume.lease import Lease
from penstock.errors import StaleReceipt, StoreUnavailable, Unreachable
from penstock.extras import importing
from penstock.integrations.declaring import ensure_queue
from penstock.model.delivery import ResultStatus
from penstock.model.limits import DEFAULT_PRIORITY, MAX_WAIT_MS
from penstock.model.message import MessageId
from penstock.model.policy_fields import PolicyFields
from penstock.model.states import State
from penstock.sync import SyncVerbs

with importing("dramatiq", "dramatiq"):
    from dramatiq import Broker, Consumer, Message, MessageProxy, Middleware
    from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, QueueNotFound
    from dramatiq.results import ResultBackend, ResultFailure, ResultMissing, ResultTimeout

if TYPE_CHECKING:
    import ssl

    from penstock.client import ClientOptions
    from penstock.client.credentials import CredentialSource

__all__ = ["PenstockBroker", "PenstockResults"]

T = TypeVar("T")

#: The option of a dramatiq message with the id of its Penstock message.
ID_OPTION: Final = "penstock_id"
#: The option with its priority in the store, 0 to 9; dramatiq's own priority orders the messages
#: that a worker has prefetched.
PRIORITY_OPTION: Final = "broker_priority"
#: How often ``join`` looks at the queue.
_JOIN_S: Final = 0.05
#: The longest wait for a result, if the caller sets no timeout.
_DEFAULT_TIMEOUT_MS: Final = 10_000


class PenstockBroker(Broker):
    """Sends dramatiq's messages to queues, and hands their deliveries to its workers."""

    def __init__(
        self,
        where: str,
        *,
        credential: CredentialSource | None = None,
        ca: str | ssl.SSLContext | None = None,
        cert: str | None = None,
        key: str | None = None,
        options: ClientOptions | None = None,
        middleware: list[Middleware] | None = None,
        **policy: Unpack[PolicyFields],
    ) -> None:
        """``where`` is the URL of a server or store; nothing is opened before the first message.

        ``credential``, ``ca``, ``cert``, ``key`` and ``options`` are those of ``penstock.connect``.
        A missing queue is created with the fields of ``policy``; an existing one is not changed.
        """
        super().__init__(middleware=middleware)
        self.queues = set()
        self._where = where
        self._connection: dict[str, Any] = {
            "credential": credential,
            "ca": ca,
            "cert": cert,
            "key": key,
            "options": options,
        }
        self._policy = policy
        self._lock = threading.Lock()
        self._verbs: SyncVerbs | None = None
        #: Queues that the store has.
        self._ensured: set[str] = set()
        #: The Penstock messages that workers of this process have in hand. Dramatiq's own id would
        #: not do: a message that is sent again has the same one.
        self.in_hand: set[MessageId] = set()

    @property
    def verbs(self) -> SyncVerbs:
        """The verbs; connects when they are first needed."""
        with self._lock:
            if self._verbs is None:
                self._verbs = self._opened()
            return self._verbs

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            verbs, self._verbs = self._verbs, None
            self._ensured.clear()
        if verbs is not None:
            verbs.close()

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue; it is created when it is first used."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def get_declared_queues(self) -> set[str]:
        """The names of all declared queues."""
        return set(self.queues)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Send a message, due after ``delay`` milliseconds; returns it with its id in the store."""
        queue = message.queue_name
        self.emit_before("enqueue", message, delay)
        previous = message.options.get(ID_OPTION)
        verbs = self._ensure(queue)
        published = verbs.publish(
            queue,
            message.encode(),
            headers={"actor": message.actor_name},
            id=_next_id(previous) if previous in self.in_hand else None,
            delay_ms=delay,
            priority=message.options.get(PRIORITY_OPTION, DEFAULT_PRIORITY),
            content_type="application/json",
            auto_create=False,
        )
        sent = message.copy(options={ID_OPTION: published.id})
        self.emit_after("enqueue", sent, delay)
        return sent

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5_000) -> Consumer:
        """An iterator over the deliveries of a queue."""
        return _Consumer(self, self._ensure(queue_name), queue_name, prefetch, timeout)

    def flush(self, queue_name: str) -> None:
        """Remove the messages of a queue that wait."""
        verbs = self._ensure(queue_name)
        for state in (State.AVAILABLE, State.DELAYED):
            verbs.purge(queue_name, state)

    def flush_all(self) -> None:
        """Remove the messages of all declared queues that wait."""
        for queue in self.queues:
            self.flush(queue)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until a queue has no unsettled message; for tests."""
        verbs = self._ensure(queue_name)
        deadline = None if timeout is None else time.monotonic() + timeout / 1000
        while verbs.stats(queue_name).depth:
            if deadline is not None and time.monotonic() >= deadline:
                raise QueueJoinTimeout(queue_name)
            time.sleep(_JOIN_S)

    def _ensure(self, queue: str) -> SyncVerbs:
        if queue not in self.queues:
            raise QueueNotFound(queue)
        verbs = self.verbs
        if queue not in self._ensured:
            verbs.run_async(lambda q: ensure_queue(q, queue, **self._policy))
            self._ensured.add(queue)
        return verbs

    def _opened(self) -> SyncVerbs:
        if self._where.startswith(("http:", "https:")):
            return sync.connect(self._where, **self._connection)
        return sync.open(self._where)


class PenstockResults(ResultBackend):
    """Results in the queue itself: carried by the ack of the message, in the same commit.

    They live as long as the queue keeps settled deliveries; ``ttl`` is ignored. ``get_result``
    needs the message that ``send`` returned.
    """

    def __init__(self, broker: PenstockBroker, **options: Any) -> None:
        """``options`` are those of dramatiq's ``ResultBackend``."""
        super().__init__(**options)
        self._broker = broker

    def store_result(self, message: Any, result: Any, ttl: int) -> None:
        """Keep the result until the message is acked."""
        message.penstock_result = self.encoder.encode({"result": result})

    def store_exception(self, message: Message[Any], exception: Exception, ttl: int) -> None:
        """Nothing to do: the rejected message has the exception as its error."""

    def get_result(
        self, message: Message[Any], *, block: bool = False, timeout: int | None = None
    ) -> Any:
        """The result of the last attempt, waiting up to ``timeout`` ms for it if ``block``."""
        timeout = _DEFAULT_TIMEOUT_MS if timeout is None else timeout
        deadline = time.monotonic() + timeout / 1000
        message_id = message.options[ID_OPTION]
        while True:
            left_ms = max(0, round((deadline - time.monotonic()) * 1000)) if block else 0
            ended = self._broker.verbs.result(
                message.queue_name, message_id, wait_ms=min(left_ms, MAX_WAIT_MS)
            )
            if ended is None:
                if not block:
                    raise ResultMissing(message)
                if time.monotonic() >= deadline:
                    raise ResultTimeout(message)
            elif ended.status is ResultStatus.DONE and ended.result is not None:
                return self.encoder.decode(ended.result)["result"]
            elif ended.status is ResultStatus.DONE:
                # The attempt failed, and was sent again before it was acked.
                message_id = self._next_attempt(message, message_id)
            else:
                raise ResultFailure(
                    f"actor raised {ended.error or ended.status}", orig_exc_msg=ended.error or ""
                )

    def _next_attempt(self, message: Message[Any], message_id: MessageId) -> MessageId:
        found = self._broker.verbs.find(message.queue_name, id=_next_id(message_id))
        if not found.messages:
            raise ResultMissing(message)
        return found.messages[0].id


class _Consumer(Consumer):
    """One consumer thread of a worker, on one queue."""

    def __init__(
        self, broker: PenstockBroker, verbs: SyncVerbs, queue: str, prefetch: int, timeout_ms: int
    ) -> None:
        self._broker = broker
        self._verbs = verbs
        self._timeout_s = timeout_ms / 1000
        self._leases: Any = None
        #: The claim in progress, from one call of ``__next__`` to the next.
        self._pending: asyncio.Future[Lease] | None = None

        async def begin(q: QueueApi) -> None:
            self._leases = q.consume(queue, max_in_flight=prefetch)

        self._call(begin)

    def __next__(self) -> MessageProxy | None:
        """The next message; None if there was none for the timeout."""
        lease = self._call(self._take)
        if lease is None:
            return None
        try:
            message = Message.decode(lease.payload)
        except Exception as error:  # noqa: BLE001  (an encoder may raise anything)
            # Raised, it would end this consumer, and the leases of all messages in hand.
            self._refuse(lease, f"The message cannot be decoded: {error}")
            return None
        sent = message.copy(options={ID_OPTION: lease.message.id})
        self._broker.in_hand.add(lease.message.id)
        return _Delivery(sent, lease)

    def ack(self, message: MessageProxy) -> None:
        """Settle the message as done, with its result if it has one."""
        assert isinstance(message, _Delivery)
        self._settle(message, lambda lease: lease.ack(message.penstock_result))

    def nack(self, message: MessageProxy) -> None:
        """Fail the message: it becomes a dead letter."""
        assert isinstance(message, _Delivery)
        self._settle(message, lambda lease: lease.reject(message.reason))

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Return messages that no worker has begun; the attempt does not count."""
        for message in messages:
            assert isinstance(message, _Delivery)
            self._settle(message, lambda lease: lease.release())

    def close(self) -> None:
        """Release what was claimed and not handed out."""
        if self._leases is not None:
            self._call(self._end)

    def _refuse(self, lease: Lease, reason: str) -> None:
        """Fail what is no message of dramatiq."""
        self._broker.logger.error("Message %d is refused. %s", lease.message.id, reason)
        self._settle_lease(lease, lambda held: held.reject(reason))

    def _settle(
        self, message: _Delivery, settle: Callable[[Lease], Coroutine[Any, Any, object]]
    ) -> None:
        self._broker.in_hand.discard(message.lease.message.id)
        self._settle_lease(message.lease, settle)

    def _settle_lease(
        self, lease: Lease, settle: Callable[[Lease], Coroutine[Any, Any, object]]
    ) -> None:
        async def call(_: QueueApi) -> None:
            try:
                await settle(lease)
            except StaleReceipt:
                # The lease lapsed: another consumer has the message.
                self._broker.logger.warning("The lease of %r was lost.", lease)

        self._call(call)

    async def _take(self, _: QueueApi) -> Lease | None:
        if self._pending is None:
            self._pending = asyncio.ensure_future(anext(self._leases))
        done, _pending = await asyncio.wait({self._pending}, timeout=self._timeout_s)
        if not done:
            return None
        taken, self._pending = self._pending, None
        return taken.result()

    async def _end(self, _: QueueApi) -> None:
        pending, leases = self._pending, self._leases
        self._pending = self._leases = None
        if pending is not None:
            pending.cancel()
            await asyncio.wait({pending})
            if not pending.cancelled() and pending.exception() is None:
                await pending.result().release()
        await leases.aclose()

    def _call(self, function: Callable[[QueueApi], Coroutine[Any, Any, T]]) -> T:
        try:
            return self._verbs.run_async(function)
        except (Unreachable, StoreUnavailable) as error:
            raise ConnectionClosed(str(error)) from error


class _Delivery(MessageProxy):
    """A message in the hands of a worker, and its lease."""

    def __init__(self, message: Message[Any], lease: Lease) -> None:
        super().__init__(message)
        self.lease = lease
        self.penstock_result: bytes | None = None

    @property
    def reason(self) -> str | None:
        """The exception that failed it."""
        error = self._exception
        return None if error is None else f"{type(error).__name__}: {error}"


def _next_id(message_id: MessageId) -> str:
    """The idempotency id of what is sent again in place of a message."""
    return f"dramatiq-after-{message_id}"
