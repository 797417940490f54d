"""Private object stores: an S3 server in this process, and a proxy that fails on demand."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import socket
import threading
from collections.abc import Callable
from functools import cache
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from moto.server import ThreadedMotoServer

__all__ = ["BUCKET", "FaultProxy", "s3_endpoint", "s3_url"]

BUCKET = "penstock"
_numbers = itertools.count()
#: A server that outlives this process keeps the stores of others.
_RUN = os.urandom(4).hex()
#: Credentials that the server does not check, but which a client has to send.
_KEY = "key:secret"
_SIGNED = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=none"
}


@cache
def s3_endpoint() -> str:
    """The URL of an S3 server with a bucket, which ends with this process.

    PENSTOCK_TEST_S3 names another one instead, such as SeaweedFS, which is faster.
    """
    if given := os.environ.get("PENSTOCK_TEST_S3"):
        return given
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    atexit.register(server.stop)
    host, port = server.get_host_and_port()
    connection = HTTPConnection(host, port)
    connection.request("PUT", f"/{BUCKET}", headers=_SIGNED)
    assert connection.getresponse().read() is not None
    connection.close()
    return f"http://{host}:{port}"


def s3_url(endpoint: str, **settings: object) -> str:
    """The URL of a new store on an S3 server."""
    options = {"commit_interval_ms": 0, "region": "us-east-1", **settings}
    query = "".join(f"&{name}={value}" for name, value in options.items())
    path = f"test-{_RUN}-{next(_numbers)}"
    return f"slatedb+s3://{_KEY}@{BUCKET}/{path}?endpoint={endpoint}{query}"


class FaultProxy:
    """Passes requests on to an S3 server, unless ``fault`` answers otherwise.

    ``fault`` gets the method and the path of a request. It returns None to pass the request on, a
    status to answer with that, or ``DROP`` to pass it on and close the connection without a reply.
    It may block, which delays the request.
    """

    DROP = 0

    def __init__(self, endpoint: str) -> None:
        self.fault: Callable[[str, str], int | None] = lambda method, path: None
        self.requests = 0
        self.without_conditions = False
        """Removes the condition of a PUT, like a server that ignores it."""
        proxy = self
        host, port = endpoint.removeprefix("http://").split(":")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

            def _pass(self) -> None:
                proxy.requests += 1
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status = proxy.fault(self.command, self.path)
                if status:
                    self._answer(status, b"<Error><Code>Injected</Code></Error>", [])
                    return
                headers = dict(self.headers.items())
                if proxy.without_conditions:
                    headers.pop("if-none-match", None)
                    headers.pop("If-None-Match", None)
                upstream = HTTPConnection(host, int(port), timeout=30)
                try:
                    upstream.request(self.command, self.path, body, headers)
                    reply = upstream.getresponse()
                    content = reply.read()
                    if status == FaultProxy.DROP:
                        self.close_connection = True
                        self.connection.shutdown(socket.SHUT_RDWR)
                    else:
                        self._answer(reply.status, content, reply.getheaders())
                finally:
                    upstream.close()

            def _answer(self, status: int, body: bytes, headers: list[tuple[str, str]]) -> None:
                self.send_response_only(status)
                skipped = ("connection", "content-length", "transfer-encoding")
                for name, value in headers:
                    if name.lower() not in skipped:
                        self.send_header(name, value)
                length = dict(headers).get("Content-Length", len(body))
                self.send_header(
                    "Content-Length", str(length if self.command == "HEAD" else len(body))
                )
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass  # noqa: N815

            def log_message(self, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop accepting requests."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
