"""A proxy before an S3 server that counts requests and fails on demand.

Run as a program, ``python -m tests.fault_proxy ENDPOINT SECONDS`` delays every request. It prints
its own endpoint, and for every line of its input the number of requests so far.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

__all__ = ["FaultProxy"]

#: The code that S3 sends with a status.
_CODES: Final = {403: "AccessDenied", 404: "NoSuchBucket", 503: "SlowDown"}
_UPSTREAM_S: Final = 30.0
_SKIPPED: Final = ("connection", "content-length", "transfer-encoding")


class FaultProxy:
    """Passes requests on to an S3 server, unless ``fault`` answers otherwise.

    ``fault`` gets the method and the path of a request. It returns None to pass the request on, a
    status to answer with that, or ``DROP`` to pass it on and close the connection without a reply.
    It may block, which delays the request.
    """

    DROP = 0

    def __init__(self, endpoint: str) -> None:
        self.fault: Callable[[str, str], int | None] = lambda method, path: None
        self.methods: Counter[str] = Counter()
        """The requests so far, by method."""
        self.without_conditions = False
        """Removes the condition of a PUT, like a server that ignores it."""
        host, port = endpoint.removeprefix("http://").split(":")
        self._upstream = (host, int(port))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def requests(self) -> int:
        """How many requests came."""
        return self.methods.total()

    def close(self) -> None:
        """Stop accepting requests."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        class Handler(_Handler):
            proxy = self
            upstream = self._upstream

        return Handler


class _Handler(BaseHTTPRequestHandler):
    """One connection, with one of its own to the S3 server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    proxy: FaultProxy
    upstream: tuple[str, int]

    def setup(self) -> None:
        super().setup()
        self._connection = HTTPConnection(*self.upstream, timeout=_UPSTREAM_S)

    def finish(self) -> None:
        self._connection.close()
        super().finish()

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (OSError, HTTPException):
            self.close_connection = True

    def _pass(self) -> None:
        self.proxy.methods[self.command] += 1
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status = self.proxy.fault(self.command, self.path)
        if status:
            code = _CODES.get(status, "Injected")
            self._answer(status, b"<Error><Code>%s</Code></Error>" % code.encode(), [])
            return
        headers = dict(self.headers.items())
        if self.proxy.without_conditions:
            headers.pop("if-none-match", None)
            headers.pop("If-None-Match", None)
        try:
            self._connection.request(self.command, self.path, body, headers)
            reply = self._connection.getresponse()
            content = reply.read()
        except (OSError, HTTPException):
            self._connection.close()
            raise
        if status == FaultProxy.DROP:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self._answer(reply.status, content, reply.getheaders())

    def _answer(self, status: int, body: bytes, headers: list[tuple[str, str]]) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _SKIPPED:
                self.send_header(name, value)
        length = dict(headers).get("Content-Length", len(body))
        self.send_header("Content-Length", str(length if self.command == "HEAD" else len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass  # noqa: N815

    def log_message(self, *args: object) -> None:
        return


def _run(endpoint: str, seconds: float) -> None:
    proxy = FaultProxy(endpoint)
    proxy.fault = lambda method, path: time.sleep(seconds)
    print(proxy.endpoint, flush=True)
    for _ in sys.stdin:
        print(proxy.requests, flush=True)


if __name__ == "__main__":
    _run(sys.argv[1], float(sys.argv[2]))
