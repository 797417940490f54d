"""``python -m bench.bare_asgi PORT``: the minimum that an ASGI application does for a publish."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import msgspec
import uvloop
from granian.constants import HTTPModes, Interfaces
from granian.server.embed import Server

_decode = msgspec.json.Decoder().decode


async def app(_scope: dict[str, Any], receive: Any, send: Any) -> None:
    event = await receive()
    body = event["body"]
    while event.get("more_body"):
        event = await receive()
        body += event["body"]
    _decode(body)
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"id":1}'})


async def main(port: int) -> None:
    server = Server(
        app,
        port=port,
        interface=Interfaces.ASGINL,
        http=HTTPModes.http1,
        websockets=False,
        log_enabled=False,
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
    await server.serve()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
