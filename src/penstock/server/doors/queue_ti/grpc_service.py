"""The gRPC service of queue-ti, on a port of its own, in the event loop of the server.

Every RPC passes the same gate: metrics, authentication, the request rate, and the memory budget.
Subscribe too, which queue-ti itself leaves open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from penstock.errors import BadSetting, Busy, PenstockError
from penstock.model.delivery import Delivery
from penstock.model.limits import MAX_WAIT_MS
from penstock.server.access import Credential, Tls
from penstock.server.budget import Hold
from penstock.server.claiming import within_bounds
from penstock.server.doors.message_uuid import message_uuid
from penstock.server.doors.queue_ti import messages
from penstock.server.doors.queue_ti.access import (
    Caller,
    Identities,
    check_may,
    may,
    may_dequeue,
)
from penstock.server.doors.queue_ti.proto import queue_pb2 as pb
from penstock.server.doors.queue_ti.refusals import grpc_code, not_found, refusal_text
from penstock.server.doors.queue_ti.topics import Limits, TopicName, topic_text
from penstock.server.metrics.counting import name_of
from penstock.server.service import Service
from penstock.storage.engine_options import not_writer
from penstock.telemetry import current_tenant

__all__ = ["GrpcServer"]

log = logging.getLogger("penstock.server")

SERVICE: Final = "queue.QueueService"
#: RPCs in progress at one time, including streams; more are refused by grpc.
MAX_RPCS: Final = 2_000
#: What a request may have beside its payload: metadata, up to the limit of headers, and the rest.
_ENVELOPE_BYTES: Final = 64 * 1024
#: Payloads in one reply, beyond the first: clients of gRPC refuse a reply of more than 4 MiB.
MAX_REPLY_BYTES: Final = 3 * 1024 * 1024
#: How long a subscriber of a topic that does not exist pauses between looks, as in queue-ti.
_POLL_S: Final = 0.25
_MAX_POLL_S: Final = 2.0
_SUBSCRIBE_WAIT_MS: Final = MAX_WAIT_MS


class GrpcServer:
    """The server of the service; ``start`` listens."""

    def __init__(
        self,
        service: Service,
        limits: Limits,
        identities: Identities,
        *,
        host: str,
        port: int,
        tls: Tls | None,
    ) -> None:
        self._service = service
        self._limits = limits
        self._identities = identities
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._tls = tls
        self._server: Any = None
        self.port = port
        """The port; if it was 0, the one that was picked."""

    async def start(self) -> None:
        """Listen; raises ``BadSetting`` if the port is taken."""
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=MAX_RPCS,
            options=[
                ("grpc.so_reuseport", 0),
                (
                    "grpc.max_receive_message_length",
                    self._service.payload_bytes + _ENVELOPE_BYTES,
                ),
                ("grpc.max_send_message_length", -1),
            ],
        )
        self._server.add_generic_rpc_handlers((self._handlers(),))
        try:
            if self._tls is None:
                self.port = self._server.add_insecure_port(self._address)
            else:
                self.port = self._server.add_secure_port(self._address, _credentials(self._tls))
        except RuntimeError as error:
            raise BadSetting(
                f"Cannot listen on {self._address}: something else listens there, or the address"
                " is not of this machine.",
                field="queue_ti_grpc_port",
            ) from error
        await self._server.start()
        log.info("The gRPC service of queue-ti listens on port %d.", self.port)

    async def stop(self, grace_s: float) -> None:
        """Refuse new RPCs, and end those in progress after the grace."""
        if self._server is not None:
            await self._server.stop(grace_s)

    def _handlers(self) -> Any:
        unary: dict[str, tuple[Any, Any, Any]] = {
            "Enqueue": (self._enqueue, pb.EnqueueRequest, pb.EnqueueResponse),
            "Dequeue": (self._dequeue, pb.DequeueRequest, pb.DequeueResponse),
            "BatchDequeue": (
                self._batch_dequeue,
                pb.BatchDequeueRequest,
                pb.BatchDequeueResponse,
            ),
            "Ack": (self._ack, pb.AckRequest, pb.AckResponse),
            "Nack": (self._nack, pb.NackRequest, pb.NackResponse),
        }
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                self._unary(name, handler),
                request_deserializer=request.FromString,
                response_serializer=response.SerializeToString,
            )
            for name, (handler, request, response) in unary.items()
        }
        methods["Subscribe"] = grpc.unary_stream_rpc_method_handler(
            self._subscribe,
            request_deserializer=pb.SubscribeRequest.FromString,
            response_serializer=pb.SubscribeResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    # -- the gate ----------------------------------------------------------------------

    def _unary(
        self, name: str, handler: Callable[[Any, Credential, Hold], Awaitable[Any]]
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        async def answer(request: Any, context: Any) -> Any:
            async with self._gate(name, request, context) as (caller, hold):
                return await handler(request, caller, hold)

        return answer

    @asynccontextmanager
    async def _gate(
        self, name: str, request: Any, context: Any
    ) -> AsyncIterator[tuple[Credential, Hold]]:
        """Authenticate and bound one RPC; turns errors into its status."""
        service, started, outcome = self._service, perf_counter(), "ok"
        service.metrics.began()
        hold = Hold(service.budget)
        try:
            service.check_running()
            caller = await self._identities.identify(_authorization(context))
            if caller.requests_per_s is not None:
                service.access.rates.take(caller)
            role = service.broker.engine.role
            if role.is_standby:
                raise not_writer(role)
            current_tenant.set(caller.tenant)
            hold.belongs_to(caller.tenant)
            hold.take(request.ByteSize())
            yield caller, hold
        except PenstockError as error:
            outcome = name_of(error)
            await _abort(context, error)
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except grpc.aio.AbortError:
            raise
        except Exception:
            # Bugs end up here: log the traceback, answer with one line.
            outcome = "error"
            log.exception("A call of %s failed.", name)
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")
        finally:
            hold.set(0)
            service.metrics.called(f"queue-ti.grpc.{name}", outcome, perf_counter() - started)

    # -- the RPCs ----------------------------------------------------------------------

    async def _enqueue(self, request: Any, caller: Credential, hold: Hold) -> Any:  # noqa: ARG002
        topic = messages.check_payload(request.topic, request.payload)
        check_may(may(caller, "write", topic))
        key = request.key if request.HasField("key") else None
        broker = self._service.broker.for_tenant(caller.tenant)
        made = await messages.enqueue(
            broker, self._limits, topic, request.payload, dict(request.metadata), key
        )
        return pb.EnqueueResponse(id=made)

    async def _dequeue(self, request: Any, caller: Credential, hold: Hold) -> Any:
        wanted = _wanted(request, 1)
        found = await self._claim(wanted, request.consumer_group, caller, hold)
        if not found:
            raise not_found("no messages available")
        return found[0]

    async def _batch_dequeue(self, request: Any, caller: Credential, hold: Hold) -> Any:
        wanted = _wanted(request, request.count)
        found = await self._claim(wanted, request.consumer_group, caller, hold)
        return pb.BatchDequeueResponse(messages=found)

    async def _claim(
        self, wanted: messages.Wanted, group: str, caller: Credential, hold: Hold
    ) -> list[Any]:
        check_may(may_dequeue(caller, wanted.topic, group))
        broker = self._service.broker.for_tenant(caller.tenant)
        hold.check()
        claimed = await messages.dequeue(broker, wanted, _consumer(caller))
        deliveries = await within_bounds(broker, hold, claimed, MAX_REPLY_BYTES)
        self._service.metrics.claimed(len(deliveries))
        retries = await messages.max_retries(broker, wanted.topic) if deliveries else 0
        return [_dequeued(delivery, retries) for delivery in deliveries]

    async def _ack(self, request: Any, caller: Credential, hold: Hold) -> Any:  # noqa: ARG002
        await self._settle(request, caller, ack=True)
        return pb.AckResponse()

    async def _nack(self, request: Any, caller: Credential, hold: Hold) -> Any:  # noqa: ARG002
        await self._settle(request, caller, error=request.error, ack=False)
        return pb.NackResponse()

    async def _settle(
        self, request: Any, caller: Credential, *, error: str | None = None, ack: bool
    ) -> None:
        broker = self._service.broker.for_tenant(caller.tenant)
        claimed = await messages.in_processing(broker, request.id, request.consumer_group)
        name = claimed.message.topic
        topic = TopicName(topic_text(name), name, is_dlq=False)
        check_may(may_dequeue(caller, topic, request.consumer_group))
        await messages.settle(broker, claimed, error=error, ack=ack)

    async def _subscribe(self, request: Any, context: Any) -> None:
        async with self._gate("Subscribe", request, context) as (caller, _):
            wanted = _wanted(request, 1)
            check_may(may_dequeue(caller, wanted.topic, request.consumer_group))
            broker = self._service.broker.for_tenant(caller.tenant)
            self._service.begin_wait(caller.tenant)
            try:
                pause_s = _POLL_S
                while True:
                    found = await self._next(broker, wanted, caller)
                    for delivery in found:
                        await context.write(_subscribed(delivery))
                    if found:
                        pause_s = _POLL_S
                        continue
                    # A stream outlives the token that began it by at most one wait.
                    current = await self._identities.identify(_authorization(context))
                    check_may(may_dequeue(current, wanted.topic, request.consumer_group))
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _MAX_POLL_S)
            finally:
                self._service.end_wait(caller.tenant)

    async def _next(
        self, broker: Any, wanted: messages.Wanted, caller: Credential
    ) -> list[Delivery]:
        """The next message, waiting for it; raises ``Busy`` once the server stops."""
        claiming = asyncio.ensure_future(
            messages.dequeue(broker, wanted, _consumer(caller), wait_ms=_SUBSCRIBE_WAIT_MS)
        )
        stopping = asyncio.ensure_future(self._service.stopping.wait())
        try:
            await asyncio.wait((claiming, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not claiming.done():
                raise Busy("The server is stopping.")
            return claiming.result()
        finally:
            stopping.cancel()
            if not claiming.done():
                claiming.cancel()


def _wanted(request: Any, count: int) -> messages.Wanted:
    visibility_s = (
        request.visibility_timeout_seconds
        if request.HasField("visibility_timeout_seconds")
        else None
    )
    return messages.wanted(request.topic, count, visibility_s, request.consumer_group)


def _consumer(caller: Credential) -> str:
    return messages.consumer_name(caller.username if isinstance(caller, Caller) else caller.name)


def _dequeued(delivery: Delivery, retries: int) -> Any:
    shown = messages.claimed_message(delivery, retries)
    reply = pb.DequeueResponse(
        id=shown.id,
        topic=shown.topic,
        payload=delivery.payload,
        metadata=shown.metadata,
        retry_count=shown.retry_count,
        max_retries=shown.max_retries,
        key=delivery.message.key,
    )
    reply.created_at.FromMilliseconds(delivery.message.published_at)
    return reply


def _subscribed(delivery: Delivery) -> Any:
    shown = messages.claimed_message(delivery, 0)
    reply = pb.SubscribeResponse(
        id=message_uuid(delivery.message.id),
        topic=shown.topic,
        payload=delivery.payload,
        metadata=shown.metadata,
        retry_count=shown.retry_count,
    )
    reply.created_at.FromMilliseconds(delivery.message.published_at)
    return reply


def _authorization(context: Any) -> bytes | None:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            return value if isinstance(value, bytes) else value.encode("latin-1", "replace")
    return None


async def _abort(context: Any, error: PenstockError) -> NoReturn:
    await context.abort(grpc.StatusCode[grpc_code(error)], refusal_text(error))
    raise AssertionError("abort raises")


def _credentials(tls: Tls) -> Any:
    authority = None if tls.client_ca is None else tls.client_ca.read_bytes()
    return grpc.ssl_server_credentials(
        [(tls.key.read_bytes(), tls.cert.read_bytes())],
        root_certificates=authority,
        require_client_auth=authority is not None,
    )
