"""Heads of requests on a real socket: what the application refuses, and what its parser does.

The parser is hyper, inside Granian. What it cannot read it answers with an empty 400; another table
shows where it is lenient, so that an upgrade that changes this is noticed (docs/http.md).
"""

from __future__ import annotations

import json

from penstock.testing.laws import law
from tests.service.serving import Serve, Served
from tests.service.wire import Wire

POST = b"POST /v1/topics/orders/messages HTTP/1.1\r\nContent-Type: application/json\r\n"
HOST = b"Host: localhost\r\n"
CHUNKS = b"\r\n1\r\n7\r\n0\r\n\r\n"

REFUSED = {
    "no Host": (b"GET /healthz HTTP/1.1\r\n\r\n", 400, "Host"),
    "two Hosts": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n", 400, "Host"),
    "a foreign Host": (b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, "Host"),
    "identity, chunked": (
        POST + HOST + b"Transfer-Encoding: identity, chunked\r\n" + CHUNKS,
        400,
        "Transfer-Encoding",
    ),
    "chunked twice": (
        POST + HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n" + CHUNKS,
        400,
        "Transfer-Encoding",
    ),
    "a type twice": (
        POST + HOST + b"Content-Type: text/plain\r\nContent-Length: 1\r\n\r\n7",
        400,
        "Content-Type",
    ),
    "gzip": (
        POST + HOST + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\n7",
        415,
        "Content-Encoding",
    ),
}

#: Answered by the parser, without a problem document, and the connection is closed.
UNREADABLE = {
    "garbage": b"\x00\x01garbage\r\n\r\n",
    "another version": b"GET /healthz HTTP/3.7\r\nHost: localhost\r\n\r\n",
    "a blank before the colon": b"GET /healthz HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "a folded header": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
    "a zero byte": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
    "two lengths": POST + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n77",
    "a length with a sign": POST + HOST + b"Content-Length: +1\r\n\r\n7",
    "chunked, identity": POST + HOST + b"Transfer-Encoding: chunked, identity\r\n" + CHUNKS,
    "gzip as a transfer coding": POST + HOST + b"Transfer-Encoding: gzip\r\n" + CHUNKS,
}

#: Accepted, though RFC 9112 would allow to refuse it; the application cannot see the difference.
LENIENT = {
    "bare LF in the head": (b"GET /healthz HTTP/1.1\nHost: localhost\n\n", False),
    "HTTP/1.0 without Host": (b"GET /healthz HTTP/1.0\r\n\r\n", True),
    # RFC 9110, 8.6: equal lengths may be taken for one.
    "the same length twice": (
        POST + HOST + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n7",
        False,
    ),
    # RFC 9112, 6.3: the length is dropped, and the connection closed after the reply.
    "chunks and a length": (
        POST + HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n" + CHUNKS,
        True,
    ),
}


async def exchange(server: Served, request: bytes) -> Wire:
    wire = await Wire.to(server)
    await wire.send(request)
    return wire


@law("E1")
async def test_heads_that_are_refused(serve: Serve) -> None:
    server = serve(store="memory://")
    for name, (request, status, field) in REFUSED.items():
        async with await exchange(server, request) as wire:
            reply = await wire.reply()
            problem = json.loads(reply.body)
            assert (reply.status, problem.get("field")) == (status, field), (name, problem)
            assert reply.headers["content-type"] == "application/problem+json"
            if status == 400 and field != "Content-Type":
                assert not await wire.rest(), name
    assert server.call("GET", "/v1/log/end").json() == {"offset": 0}


async def test_what_the_parser_in_front_does(serve: Serve) -> None:
    server = serve(store="memory://")
    for name, request in UNREADABLE.items():
        async with await exchange(server, request) as wire:
            reply = await wire.reply()
            assert (reply.status, reply.body) == (400, b""), name
            assert not await wire.rest(), name
    # The application has the head already.
    chunks = POST + HOST + b"Transfer-Encoding: chunked\r\n\r\n1\n7\n0\n\n"
    async with await exchange(server, chunks) as wire:
        assert (await wire.reply()).status == 400
        assert not await wire.rest()
    assert server.call("GET", "/v1/log/end").json() == {"offset": 0}
    for name, (request, closes) in LENIENT.items():
        async with await exchange(server, request) as wire:
            assert (await wire.reply()).status < 300, name
            if closes:
                assert not await wire.rest(), name
