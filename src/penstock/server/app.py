"""The ASGI application: the envelope that every door shares.

Find the door, check the head and whether a web page may have sent the request, authenticate, let
the door answer, send its reply; every error becomes a reply of that door (E1). There is no
framework between the socket and the verb: measured on one core with 64 connections, raw ASGI
answers twice as many requests as Starlette and four times as many as FastAPI.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, MutableMapping
from functools import cache
from time import perf_counter
from typing import Any, Final, TypeAlias

from penstock.errors import (
    BadInput,
    PenstockError,
    ServiceError,
)
from penstock.server.budget import Hold
from penstock.server.call import Call
from penstock.server.doors.door import Door
from penstock.server.head import check_head
from penstock.server.http import Cut
from penstock.server.metrics.counting import name_of
from penstock.server.native.door import NativeDoor
from penstock.server.openapi import openapi
from penstock.server.replies import (
    Send,
    Streamed,
    Unread,
    send_plain,
    send_streamed,
)
from penstock.server.request_parsing import Disconnected, Incomplete, Receive
from penstock.server.routing import AnyRoute
from penstock.server.service import Service
from penstock.storage.engine_options import not_writer
from penstock.telemetry import current_request_id
from penstock.wire.codecs import encode_json

__all__ = ["Application"]

Scope: TypeAlias = MutableMapping[str, Any]

log = logging.getLogger("penstock.server")

#: A caller's own request id is used if it is short and safe to log.
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=-]{1,64}")
#: W3C trace context.
_TRACE: Final = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
#: On replies of a server that stands by: the URL of the writer.
STANDBY: Final = b"penstock-standby"
_READING: Final = frozenset({"GET", "HEAD"})


class Application:
    """ASGI in, verbs out."""

    def __init__(
        self, service: Service, routes: Iterable[AnyRoute], doors: Iterable[Door] = ()
    ) -> None:
        self.service = service
        self._browsers = service.browsers
        self._native = NativeDoor(routes)
        self._doors = tuple(doors)
        """The doors beside the native one, in the order in which they are asked."""
        # Built on the first request: it takes 9 ms, and most servers are never asked for it.
        service.describe = cache(self._describe)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request; other kinds of connection are ignored."""
        if scope["type"] != "http":
            return
        started = perf_counter()
        self.service.metrics.began()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = self._request_id(headers)
        current_request_id.set(request_id)
        outcome = "ok"
        hold = Hold(self.service.budget)
        call = Call(self.service, scope, headers, receive, request_id, hold)
        door = call.door = self._door_of(call)
        try:
            check_head(scope, headers)
            if self._browsers is not None:
                self._browsers.check(call.method, headers, door.page_proof, path=call.path)
            door.find(call)
            if call.claims and self._browsers is not None and door.page_proof is not None:
                self._browsers.check_claim(headers, door.page_proof)
            role = self.service.broker.engine.role
            if role.is_standby:
                send = _marked(send, role.writer or "unknown")
                if call.method not in _READING:
                    # Before a handler looks at lagging state: it would refuse a new queue.
                    raise not_writer(role)
            call.admit(await door.authenticate(call))
            reply = await door.answer(call)
            if isinstance(reply, Streamed):
                await self._stream(send, reply, request_id, hold)
            else:
                await send_plain(send, reply, request_id, hold, self.service.timeouts)
        except Incomplete:
            # If nothing was answered, the HTTP server would take it for a bug.
            outcome = "disconnected"
            ended = BadInput("The body ends before it is complete.", field="Content-Length")
            await self._refuse(call, ended, send)
        except Disconnected:
            outcome = "disconnected"
        except PenstockError as error:
            # The traceback references the part of the body that was read.
            error.__traceback__ = error.__cause__ = error.__context__ = None
            hold.set(0)
            outcome = await self._refuse(call, error, send)
        except Unread as error:
            outcome = "disconnected"
            self.service.metrics.cut()
            log.warning(
                "A caller did not read the reply to its %s, and was disconnected.",
                call.verb,
                extra=_trace_of(call),
            )
            raise Cut from error
        except (asyncio.CancelledError, Cut):
            outcome = "cancelled"
            raise
        except Exception:
            # Bugs end up here: log the traceback, answer with one line.
            outcome = "error"
            log.exception("A call of %s failed.", call.verb, extra=_trace_of(call))
            await self._refuse(call, _Bug("The server failed to answer this call."), send)
        finally:
            hold.set(0)
            self.service.metrics.called(call.verb, outcome, perf_counter() - started)

    def _door_of(self, call: Call) -> Door:
        for door in self._doors:
            if door.takes(call):
                return door
        return self._native

    async def _refuse(self, call: Call, error: PenstockError, send: Send) -> str:
        if error.status >= 500 and not isinstance(error, _Bug):
            log.warning("%s", error, extra=_trace_of(call))
        hold = Hold(self.service.budget)
        reply = call.door.refuse(call, error)
        await send_plain(send, reply, call.request_id, hold, self.service.timeouts)
        hold.set(0)
        return name_of(error)

    async def _stream(self, send: Send, reply: Streamed, request_id: str, hold: Hold) -> None:
        try:
            await send_streamed(send, reply, request_id, hold, self.service.timeouts)
        except (Disconnected, Unread):
            raise
        except Exception as error:
            log.exception("A stream failed.")
            raise Cut from error

    def _describe(self) -> bytes:
        return encode_json(
            openapi(self._native.routes.all, self.service.limits, self.service.payload_bytes)
        )

    def _request_id(self, headers: dict[bytes, bytes]) -> str:
        given = headers.get(b"penstock-request-id")
        if given is not None and _REQUEST_ID.fullmatch(given) is not None:
            return given.decode()
        return self.service.next_request_id()


def _trace_of(call: Call) -> dict[str, str]:
    """The fields of a log line that lead to the caller's trace."""
    found = _TRACE.fullmatch(call.headers.get(b"traceparent", b""))
    return {} if found is None else {"trace_id": found[1].decode(), "span_id": found[2].decode()}


class _Bug(ServiceError):
    """The server itself failed."""

    title = "Internal error"
    advice = "Report it with the request id; the server's log has the cause."
    status = 500


def _marked(send: Send, writer: str) -> Send:
    """Mark every reply of a server that stands by, since what it read may lag."""

    async def send_marked(event: MutableMapping[str, Any]) -> None:
        if event["type"] == "http.response.start":
            event["headers"] = [*event["headers"], (STANDBY, writer.encode())]
        await send(event)

    return send_marked
