"""The client on the other event loop: its transports and its arguments differ from asyncio's."""

from __future__ import annotations

import asyncio
import sys

import pytest

from penstock.client import connect
from penstock.wire.bodies import LogEnd
from penstock.wire.codecs import encode_msgpack


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not made for Windows")
def test_a_call_on_uvloop() -> None:
    import uvloop

    body = encode_msgpack(LogEnd(7))  # type: ignore[arg-type]
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/msgpack\r\ncontent-length: %d\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(answer % len(body) + body)

    async def main() -> tuple[int, int]:
        server = await asyncio.start_server(serve, "localhost", 0)
        port = server.sockets[0].getsockname()[1]
        async with connect(f"http://localhost:{port}") as q:
            ends = await q.log_end(), await q.log_end()
        server.close()
        return ends

    assert uvloop.run(main()) == (7, 7)
