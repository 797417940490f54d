"""Connections that mean no good, or were made by somebody who is not at their best.

Each kind sends what it has and then waits for the server to end the connection. None of them
gives up first: that a server gets rid of them by itself is what there is to see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Final, TypeAlias

from tests.service.serving import Served

Attack: TypeAlias = Callable[[asyncio.StreamWriter, Random], Awaitable[None]]

_GET: Final = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
_POST: Final = (
    b"POST /v1/topics/hostile/messages HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/octet-stream\r\n"
)
#: Longer than a server should need to get rid of anybody here.
PATIENCE_S: Final = 30
_DRIP_S: Final = 0.05


def _once(content: bytes) -> Attack:
    async def attack(writer: asyncio.StreamWriter, random: Random) -> None:
        writer.write(content)
        await writer.drain()

    return attack


async def _garbage(writer: asyncio.StreamWriter, random: Random) -> None:
    writer.write(random.randbytes(random.randint(1, 4000)))
    await writer.drain()


async def _nothing(writer: asyncio.StreamWriter, random: Random) -> None:
    pass


async def _tls_hello(writer: asyncio.StreamWriter, random: Random) -> None:
    writer.write(bytes.fromhex("16030100c8010000c40303") + random.randbytes(194))
    await writer.drain()


async def _endless_headers(writer: asyncio.StreamWriter, random: Random) -> None:
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
    while True:
        # Not more at a time: connections that have to wait for this one would be sent too late.
        for _ in range(32):
            writer.write(b"X-%d: %s\r\n" % (random.randrange(10**9), b"y" * 1000))
        await writer.drain()
        await asyncio.sleep(_DRIP_S)


async def _dripped_head(writer: asyncio.StreamWriter, random: Random) -> None:
    while True:
        for byte in b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"y" * 10_000:
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(_DRIP_S)


async def _dripped_body(writer: asyncio.StreamWriter, random: Random) -> None:
    writer.write(_POST + b"Content-Length: 100000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(_DRIP_S)


ATTACKS: Final[dict[str, Attack]] = {
    "nothing": _nothing,
    "garbage": _garbage,
    "half a request line": _once(b"GET /heal"),
    "half a head": _once(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Half"),
    "half a body": _once(_POST + b"Content-Length: 1000\r\n\r\nhalf"),
    "a huge header": _once(
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Huge: " + b"y" * 2**20 + b"\r\n\r\n"
    ),
    "endless headers": _endless_headers,
    "a chunk without a size": _once(_POST + b"Transfer-Encoding: chunked\r\n\r\nno\r\nab\r\n"),
    "a chunk larger than numbers": _once(
        _POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"F" * 40 + b"\r\nab\r\n"
    ),
    "half a chunk": _once(_POST + b"Transfer-Encoding: chunked\r\n\r\n400\r\nhalf"),
    "two lengths": _once(_POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
    "pipelined requests": _once(_GET * 100),
    "HTTP/2": _once(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"),
    "TLS": _tls_hello,
    "a dripped head": _dripped_head,
    "a dripped body": _dripped_body,
}


async def attack(server: Served, kind: str, random: Random) -> bytes:
    """What the server answered before it ended the connection."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    sending = asyncio.ensure_future(ATTACKS[kind](writer, random))
    answered = bytearray()
    try:
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionError):
                while part := await reader.read(1 << 16):
                    answered += part
    finally:
        sending.cancel()
        with suppress(ConnectionError, asyncio.CancelledError):
            await sending
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    return bytes(answered)
