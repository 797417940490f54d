"""The door: recognises requests of SQS, authenticates them, and answers in their protocol.

The JSON protocol is a POST to ``/`` whose header X-Amz-Target names the operation. In the Query
protocol the operation is a field of a form, which is the body of a POST or the query string of a
GET, to ``/`` or to the URL of a queue.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from penstock.errors import PenstockError, Unauthenticated, UnknownRoute
from penstock.server.access import ANYBODY, Credential
from penstock.server.call import Call
from penstock.server.doors.door import Door
from penstock.server.doors.records import Records
from penstock.server.doors.sqs.failures import BadSignature, SqsError, failure_of
from penstock.server.doors.sqs.moving import MoveTasks
from penstock.server.doors.sqs.names import DEFAULT_REGION
from penstock.server.doors.sqs.operations import OPERATIONS
from penstock.server.doors.sqs.query_protocol import (
    error_xml,
    read_form,
    reply_xml,
    to_request,
)
from penstock.server.doors.sqs.request_context import Documents, QueueCache, Shared, SqsCall
from penstock.server.doors.sqs.signature import read_signature, region_of, verify
from penstock.server.replies import PART_BYTES, Plain
from penstock.server.service import Service
from penstock.settings import Settings
from penstock.storage.randomness import RandomBytes, random_bytes
from penstock.wire.codecs import encode_json

__all__ = ["SqsDoor", "open_door"]

_TARGET: Final = b"x-amz-target"
_PREFIX: Final = b"AmazonSQS."
_JSON: Final = "application/x-amz-json-1.0"
_XML: Final = "text/xml"
_QUEUE_PATH: Final = re.compile(r"/[0-9]{12}/[^/]+")
#: A mebibyte of text, of which most characters take three in a form or in JSON, and attributes.
_MAX_BODY: Final = 4 * 1024 * 1024
#: Of an operation that sends nothing; an access policy of 64 KiB, escaped, is the most it has.
_MAX_SMALL_BODY: Final = 256 * 1024
#: Reading the signature of a longer one takes tens of milliseconds, for callers not yet known.
_MAX_QUERY: Final = 32 * 1024
_SENDING: Final = ("sqs.SendMessage", "sqs.SendMessageBatch", "sqs.Query")


class SqsDoor(Door):
    """Amazon SQS."""

    name = "sqs"
    #: Every SDK signs its requests, even if the server does not look at the signature.
    page_proof = frozenset({b"authorization", b"x-amz-date", b"x-amz-target"})

    def __init__(self, service: Service, shared: Shared) -> None:
        self._service = service
        self._shared = shared

    def takes(self, call: Call) -> bool:
        """POST and the Query protocol's GET, at the root and at the URLs of queues."""
        if _TARGET in call.headers:
            return call.headers[_TARGET].startswith(_PREFIX) and call.method == "POST"
        if call.path != "/" and _QUEUE_PATH.fullmatch(call.path) is None:
            return False
        return call.method == "POST" or (call.method == "GET" and b"Action=" in call.query_string)

    def find(self, call: Call) -> None:
        """Find the operation; that of a form is known once the body is read."""
        call.claims = call.method == "GET"
        call.verb = "sqs.Query"
        if len(call.query_string) > _MAX_QUERY:
            raise SqsError(
                "MalformedQueryString",
                f"The query string has more than {_MAX_QUERY} bytes: send the fields in the body.",
            )
        target = call.headers.get(_TARGET)
        if target is not None:
            self._named(call, target.removeprefix(_PREFIX).decode("latin-1"))

    def _named(self, call: Call, action: str) -> str:
        if action not in OPERATIONS:
            raise UnknownRoute(f"The action {action[:100]} is not valid for this endpoint.")
        call.verb = f"sqs.{action}"
        return action

    async def authenticate(self, call: Call) -> Credential:
        """The credential of the API key that signed the request."""
        access = self._service.access
        if not access.enabled:
            return ANYBODY
        signed = read_signature(call.headers, call.query_string)
        try:
            credential = await access.of_key(signed.key_id)
        except Unauthenticated as error:
            raise BadSignature(
                "InvalidClientTokenId", "The security token included in the request is invalid."
            ) from error
        verify(
            signed,
            await access.keys.signing_secrets.of(signed.key_id),
            self._service.now(),
            method=call.method,
            path=call.path,
            query=call.query_string,
            headers=call.headers,
            body=await self._read_body(call),
        )
        return credential

    async def answer(self, call: Call) -> Plain:
        """Decode the request, carry it out, and encode the reply."""
        if not call.raw:
            await self._read_body(call)
        sqs = SqsCall(call, self._shared, region_of(call.headers) or DEFAULT_REGION)
        request_id = self._shared.new_id()
        own = ((b"x-amzn-requestid", request_id.encode()),)
        if _TARGET in call.headers:
            operation = OPERATIONS[call.verb.partition(".")[2]]
            reply = await operation.handler(sqs, await operation.from_json(call.raw))
            return Plain(200, await _encode(reply), _JSON, own)
        fields = await read_form(call.query_string) | await read_form(call.raw)
        action = self._named(call, fields.get("Action", ""))
        members = to_request(fields)
        if call.path != "/":
            members.setdefault("QueueUrl", call.path)
        operation = OPERATIONS[action]
        reply = await operation.handler(sqs, operation.from_members(members))
        return Plain(200, await reply_xml(action, reply, request_id), _XML, own)

    async def _read_body(self, call: Call) -> bytes:
        return await call.read_body(_MAX_BODY if call.verb in _SENDING else _MAX_SMALL_BODY)

    def refuse(self, call: Call, error: PenstockError) -> Plain:
        """The error in the protocol of the request."""
        failure = failure_of(error)
        request_id = self._shared.new_id()
        headers = [(b"x-amzn-requestid", request_id.encode())]
        if _TARGET not in call.headers:
            return Plain(failure.status, error_xml(failure, request_id), _XML, tuple(headers))
        fault = "Sender" if failure.is_sender_fault else "Receiver"
        headers.append((b"x-amzn-query-error", f"{failure.code};{fault}".encode()))
        body = encode_json({"__type": failure.type, "message": failure.message})
        return Plain(failure.status, body, _JSON, tuple(headers))

    async def stop(self) -> None:
        """End the move tasks."""
        await self._shared.moves.stop()


async def _encode(reply: dict[str, Any]) -> bytes | list[bytes]:
    """A reply as JSON; received messages that are large together are encoded one by one."""
    messages = reply.get("Messages", ())
    if sum([len(message["Body"]) for message in messages]) <= PART_BYTES:
        return encode_json(reply)
    parts = [b'{"Messages":[']
    for message in messages:
        parts += (encode_json(message), b",")
        await asyncio.sleep(0)
    parts[-1] = b"]}"
    return parts


class _Ids(Struct, frozen=True):
    """Random UUIDs, for requests and tasks."""

    random: RandomBytes

    def __call__(self) -> str:
        return str(uuid.UUID(bytes=self.random(16), version=4))


def open_door(service: Service, settings: Settings) -> SqsDoor:
    """The door of a server."""
    scheme = "http" if settings.tls_cert is None else "https"
    return new_door(service, _Ids(random_bytes), settings.advertised_url, scheme)


def new_door(
    service: Service, new_id: Callable[[], str], base_url: str | None = None, scheme: str = "http"
) -> SqsDoor:
    """The door of a service."""
    engine = service.broker.engine
    shared = Shared(
        QueueCache(engine.clock),
        Records(engine, "sqs", Documents),
        MoveTasks(engine, engine.clock),
        new_id,
        base_url,
        scheme,
    )
    return SqsDoor(service, shared)
