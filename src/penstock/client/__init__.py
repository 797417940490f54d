"""The client: the verbs of ``penstock.api`` over HTTP.

::

    verbs ─▶ call_batcher ─▶ calling ─▶ transport ─▶ a server
    publish, settle one by one     tried again    one exchange, kept connections

It depends on the wire's bodies and the broker's checks, not on the server.
"""

from __future__ import annotations

from penstock.client.client import Client
from penstock.client.connecting import connect
from penstock.client.options import ClientOptions

__all__ = ["Client", "ClientOptions", "connect"]
