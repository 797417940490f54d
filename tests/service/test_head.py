"""Heads of requests on a real socket: what is refused, and what happens to the connection."""

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

#: Not HTTP, or ambiguous: refused, and the connection is closed.
UNREADABLE = {
    "bare LF": (b"GET /healthz HTTP/1.1\nHost: localhost\n\n", "head"),
    "bare LF after the request line": (
        b"GET /healthz HTTP/1.1\nHost: localhost\r\n\r\n",
        "head",
    ),
    "bare LF after a header": (
        b"GET /healthz HTTP/1.1\r\nHost: localhost\nX: 1\r\n\r\n",
        "head",
    ),
    "bare LF as the empty line": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\n", "head"),
    "bare CR": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n", "head"),
    "garbage": (b"\x00\x01garbage\r\n\r\n", "head"),
    "garbage without an end": (b"\x16\x03\x01", "head"),
    "another version": (b"GET /healthz HTTP/3.7\r\nHost: localhost\r\n\r\n", "head"),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "head"),
    "a blank before the colon": (b"GET /healthz HTTP/1.1\r\nHost : localhost\r\n\r\n", "head"),
    "a folded header": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n", "head"),
    "a zero byte": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n", "head"),
    "two lengths": (
        POST + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n77",
        "Content-Length",
    ),
    "the same length twice": (
        POST + HOST + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n7",
        "Content-Length",
    ),
    "a length with a sign": (POST + HOST + b"Content-Length: +1\r\n\r\n7", "Content-Length"),
    "chunks and a length": (
        POST + HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n" + CHUNKS,
        "Transfer-Encoding",
    ),
    "chunked, identity": (
        POST + HOST + b"Transfer-Encoding: chunked, identity\r\n" + CHUNKS,
        "Transfer-Encoding",
    ),
    "gzip as a transfer coding": (
        POST + HOST + b"Transfer-Encoding: gzip\r\n" + CHUNKS,
        "Transfer-Encoding",
    ),
    "bare LF in chunks": (
        POST + HOST + b"Transfer-Encoding: chunked\r\n\r\n1\n7\n0\n\n",
        "Transfer-Encoding",
    ),
}

ACCEPTED = {
    "HTTP/1.0 without Host": (b"GET /healthz HTTP/1.0\r\n\r\n", True),
    "an empty line first": (b"\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", False),
    # As Java's HttpClient sends it; an upgrade may be ignored.
    "an upgrade and a body": (
        POST
        + HOST
        + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
        b"Content-Length: 1\r\n\r\n7",
        False,
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


@law("E1")
async def test_heads_that_cannot_be_read(serve: Serve) -> None:
    server = serve(store="memory://")
    for name, (request, field) in UNREADABLE.items():
        async with await exchange(server, request) as wire:
            reply = await wire.reply()
            problem = json.loads(reply.body)
            assert (reply.status, problem.get("field")) == (400, field), (name, problem)
            assert reply.headers["connection"] == "close", name
            assert not await wire.rest(), name
    assert server.call("GET", "/v1/log/end").json() == {"offset": 0}


async def test_heads_that_are_unusual_and_accepted(serve: Serve) -> None:
    server = serve(store="memory://")
    for name, (request, closes) in ACCEPTED.items():
        async with await exchange(server, request) as wire:
            assert (await wire.reply()).status < 300, name
            if closes:
                assert not await wire.rest(), name
    assert server.call("GET", "/v1/log/end").json() == {"offset": 1}
