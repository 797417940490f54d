"""HTTP/1.1 on the event loop: what is between the socket and the ASGI application.

``server`` accepts connections, ``connection`` reads requests from one, ``request_head`` and
``chunks`` parse them, ``exchange`` is one request and its reply.
"""

from __future__ import annotations

from penstock.server.http.exchange import Cut
from penstock.server.http.server import HttpOptions, HttpServer

__all__ = ["Cut", "HttpOptions", "HttpServer"]
