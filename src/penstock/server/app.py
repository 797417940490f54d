"""The ASGI application: decodes requests, calls verbs and encodes replies, for every route.

Find the route, authenticate, check the grant, read the body, call the handler, encode its
result; every error becomes a problem document (E1). There is no framework between the socket
and the verb: measured on one core with 64 connections, raw ASGI answers twice as many
requests as Starlette and four times as many as FastAPI.
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
    NotAcceptable,
    PenstockError,
    ServiceError,
)
from penstock.server.access import ANYBODY
from penstock.server.budget import Hold
from penstock.server.call import Call
from penstock.server.decoding import DIRECT_BYTES
from penstock.server.head import check_head
from penstock.server.http import Cut
from penstock.server.openapi import openapi
from penstock.server.replies import (
    SMALL_BYTES,
    Plain,
    Send,
    Streamed,
    Unread,
    encode,
    headers_bytes,
    problem_reply,
    send_plain,
    send_streamed,
)
from penstock.server.request_parsing import Disconnected, Incomplete, Receive, read_query
from penstock.server.routing import AnyRoute, Empty, Routes
from penstock.server.service import Service
from penstock.storage.engine_options import not_writer
from penstock.telemetry import current_request_id, current_tenant
from penstock.wire.codecs import MSGPACK_ALIASES, encode_json, media_type

__all__ = ["Application"]

Scope: TypeAlias = MutableMapping[str, Any]

log = logging.getLogger("penstock.server")

#: A caller's own request id is used if it is short and safe to log.
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=-]{1,64}")
_EMPTY: Final = Empty()
#: Accept headers that are answered with MessagePack or JSON without parsing them.
_MSGPACK: Final = frozenset(kind.encode() for kind in MSGPACK_ALIASES)
#: On replies of a server that stands by: the URL of the writer.
STANDBY: Final = b"penstock-standby"
_READING: Final = frozenset({"GET", "HEAD"})
_ANY: Final = frozenset({b"", b"*/*", b"application/json", b"application/*"})


class Application:
    """ASGI in, verbs out."""

    def __init__(self, service: Service, routes: Iterable[AnyRoute]) -> None:
        self.service = service
        self._browsers = service.browsers
        self.routes = Routes(routes)
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
        verb, outcome = "unknown", "ok"
        hold = Hold(self.service.budget)
        try:
            check_head(scope, headers)
            if self._browsers is not None:
                self._browsers.check(scope["method"], headers, path=scope["path"])
            route, parameters = self.routes.find(scope["method"], scope["path"])
            verb = route.verb
            if route.claims and self._browsers is not None:
                self._browsers.check_claim(headers)
            role = self.service.broker.engine.role
            if role.is_standby:
                send = _marked(send, role.writer or "unknown")
                if scope["method"] not in _READING:
                    # Before a handler looks at lagging state: it would refuse a new queue.
                    raise not_writer(role)
            reply = await self._answer(scope, route, parameters, headers, receive, request_id, hold)
            if isinstance(reply, Streamed):
                await self._stream(send, reply, request_id, hold)
            else:
                await send_plain(send, reply, request_id, hold, self.service.timeouts)
        except Incomplete:
            # If nothing was answered, the HTTP server would take it for a bug.
            outcome = "disconnected"
            await self._refuse(
                BadInput("The body ends before it is complete.", field="Content-Length"),
                send,
                request_id,
            )
        except Disconnected:
            outcome = "disconnected"
        except PenstockError as error:
            # The traceback references the part of the body that was read.
            error.__traceback__ = error.__cause__ = error.__context__ = None
            hold.set(0)
            outcome = await self._refuse(error, send, request_id)
        except Unread as error:
            outcome = "disconnected"
            self.service.metrics.cut()
            log.warning("A caller did not read the reply to its %s, and was disconnected.", verb)
            raise Cut from error
        except (asyncio.CancelledError, Cut):
            outcome = "cancelled"
            raise
        except Exception:
            # Bugs end up here: log the traceback, answer with one line.
            outcome = "error"
            log.exception("A call of %s failed.", verb)
            await self._refuse(_Bug("The server failed to answer this call."), send, request_id)
        finally:
            hold.set(0)
            self.service.metrics.called(verb, outcome, perf_counter() - started)

    async def _answer(
        self,
        scope: Scope,
        route: AnyRoute,
        parameters: tuple[str, ...],
        headers: dict[bytes, bytes],
        receive: Receive,
        request_id: str,
        hold: Hold,
    ) -> Plain | Streamed:
        service = self.service
        authorization = headers.get(b"authorization")
        credential = (
            ANYBODY if route.need.action is None else service.access.recall(authorization)
        ) or await service.access.authenticate(authorization)
        if credential.requests_per_s is not None:
            service.access.rates.take(credential)
        current_tenant.set(credential.tenant)
        hold.belongs_to(credential.tenant)
        call = Call(service, route, parameters, headers, receive, request_id, credential, hold)
        call.check_need(route.need)
        as_msgpack = _wants_msgpack(headers.get(b"accept", b""), route)
        query_string = scope["query_string"]
        query = None if query_string else route.no_query
        if query is None:
            query = read_query(route.query, query_string)
        body: object = _EMPTY
        if route.body is not None:
            raw = call.raw = await service.bodies.read(receive, headers, hold, route.body.most)
            if route.is_raw:
                body = raw
            elif len(raw) <= DIRECT_BYTES:
                body = route.body.decode(raw, call.media)
            else:
                # The decoded body is about as large as the raw one.
                hold.add(len(raw))
                body = await route.body.decode_large(raw, call.media, service.payload_bytes)
        value = await route.handler(call, query, body)
        if type(value) is Plain or type(value) is Streamed:
            return value
        # A read can be refused still; the result of a claim or a publish must be sent.
        if route.method != "GET":
            return await encode(value, route.status, as_msgpack=as_msgpack)
        if size := headers_bytes(value):
            hold.take(size)
        reply = await encode(value, route.status, as_msgpack=as_msgpack, turn=call.turn)
        if reply.size > max(hold.size, SMALL_BYTES):
            hold.take(reply.size - hold.size)
        return reply

    async def _refuse(self, error: PenstockError, send: Send, request_id: str) -> str:
        if error.status >= 500 and not isinstance(error, _Bug):
            log.warning("%s", error)
        hold = Hold(self.service.budget)
        reply = problem_reply(error, request_id)
        await send_plain(send, reply, request_id, hold, self.service.timeouts)
        hold.set(0)
        return type(error).__name__

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
            openapi(self.routes.all, self.service.limits, self.service.payload_bytes)
        )

    def _request_id(self, headers: dict[bytes, bytes]) -> str:
        given = headers.get(b"penstock-request-id")
        if given is not None and _REQUEST_ID.fullmatch(given) is not None:
            return given.decode()
        return self.service.next_request_id()


class _Bug(ServiceError):
    """The server itself failed."""

    title = "Internal error"
    advice = "Report it with the request id; the server's log has the cause."
    status = 500


def _wants_msgpack(accept: bytes, route: AnyRoute) -> bool:
    """Whether the reply is MessagePack; raises ``NotAcceptable`` if no accepted type fits."""
    if accept in _ANY:
        return False
    if accept in _MSGPACK:
        return True
    kinds = [media_type(item) for item in accept.decode("latin-1").split(",")]
    for kind in kinds:
        if kind in MSGPACK_ALIASES:
            return True
        if kind in {"*/*", "application/*", "application/json", "application/problem+json"}:
            return False
    own = {content_type for content_type, _ in route.replies}
    if own and any(kind in own or kind.endswith("/*") for kind in kinds):
        return False
    raise NotAcceptable(f"No reply type matches {accept[:200]!r}.", field="Accept")


def _marked(send: Send, writer: str) -> Send:
    """Mark every reply of a server that stands by, since what it read may lag."""

    async def send_marked(event: MutableMapping[str, Any]) -> None:
        if event["type"] == "http.response.start":
            event["headers"] = [*event["headers"], (STANDBY, writer.encode())]
        await send(event)

    return send_marked
