"""A reverse proxy that serves a server under a path of its own, as an ingress does."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: Headers of one connection.
_OWN = {"connection", "transfer-encoding", "keep-alive"}


@contextmanager
def behind(prefix: str, host: str, port: int) -> Iterator[str]:
    """The URL of the prefix, until the block ends; whatever is outside it is not there."""

    class Handler(BaseHTTPRequestHandler):
        def _pass_on(self) -> None:
            if not self.path.startswith(prefix + "/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            there = http.client.HTTPConnection(host, port)
            headers = {name: value for name, value in self.headers.items() if name != "Connection"}
            there.request(self.command, self.path.removeprefix(prefix), body, headers)
            reply = there.getresponse()
            self.send_response(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in _OWN:
                    self.send_header(name, value)
            self.end_headers()
            try:
                while data := reply.read1(65_536):
                    self.wfile.write(data)
            except OSError:
                pass  # The browser has left the stream.
            finally:
                there.close()

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Requests are not logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{prefix}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
