"""One HTTP call of a webhook: to a checked address, signed, without redirects.

The host is looked up once, and the connection goes to an address that passed the check. A name that
resolves to another address a moment later (DNS rebinding) therefore reaches nothing private. The
signature follows the Standard Webhooks convention (standardwebhooks.com).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import socket
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from ipaddress import ip_address
from typing import Any, Final, TypeAlias

from msgspec import Struct

from penstock.model.webhooks import Webhook, WebhookOptions, is_public, split_url, to_secret
from penstock.version import VERSION

__all__ = ["AddressRefused", "CallFailed", "Reply", "post", "signed_headers"]

#: The head of a reply. Nothing else of it is read.
_MAX_HEAD_BYTES: Final = 16 * 1024
_MAX_RETRY_AFTER_S: Final = 24 * 3600
#: Lookups have threads of their own. A name server that does not answer holds one for many seconds,
#: and commits need the loop's own threads.
_LOOKUPS: Final = ThreadPoolExecutor(16, thread_name_prefix="penstock-lookup")
_Lookup: TypeAlias = tuple[asyncio.AbstractEventLoop, str, int]
#: The lookups under way.
_looking: dict[_Lookup, asyncio.Future[Any]] = {}


class CallFailed(Exception):
    """No reply: the host is unknown or unreachable, too slow, or no HTTP server."""


class AddressRefused(CallFailed):
    """The host has no address that may be called."""


class Reply(Struct, frozen=True):
    """What the receiver answered."""

    status: int
    retry_after_ms: int | None = None

    @property
    def ok(self) -> bool:
        """Whether the receiver has taken the event."""
        return 200 <= self.status < 300


def signed_headers(secret: str, event_id: str, at_s: int, body: bytes) -> dict[str, str]:
    """The headers by which a receiver recognizes the event and its sender."""
    signed = f"{event_id}.{at_s}.".encode() + body
    digest = hmac.new(to_secret(secret), signed, hashlib.sha256).digest()
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(at_s),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


async def post(
    webhook: Webhook, headers: Mapping[str, str], body: bytes, options: WebhookOptions
) -> Reply:
    """Post the body; raises ``CallFailed`` if there is no reply within the timeout."""
    try:
        async with asyncio.timeout(options.timeout_ms / 1000):
            return await _post(webhook, headers, body, options)
    except TimeoutError:
        raise CallFailed(f"no reply within {options.timeout_ms} ms") from None
    except (OSError, ssl.SSLError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
        raise CallFailed(f"{type(error).__name__}: {error}") from error


async def _post(
    webhook: Webhook, headers: Mapping[str, str], body: bytes, options: WebhookOptions
) -> Reply:
    parts, host, port = split_url(webhook.url)
    tls = _tls() if parts.scheme == "https" else None
    reader, writer = await _connect(host, port, tls, allow_private=options.allow_private)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        sent = {
            **webhook.headers,
            **headers,
            "host": parts.netloc,
            "user-agent": f"Penstock/{VERSION}",
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
        }
        lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode("ascii") + body)
        await writer.drain()
        return await _read_reply(reader)
    finally:
        writer.close()
        with suppress(OSError, ssl.SSLError):
            # A receiver that does not close its side must not hold the call.
            writer.transport.abort()


async def _connect(
    host: str, port: int, tls: ssl.SSLContext | None, *, allow_private: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    addresses = await _addresses(host, port)
    allowed = [
        address
        for address in addresses
        if allow_private or is_public(ip_address(address.partition("%")[0]))
    ]
    if not allowed:
        raise AddressRefused(f"{host} has no public address; the operator may allow others")
    error: OSError | None = None
    for address in allowed:
        try:
            return await asyncio.open_connection(
                address,
                port,
                ssl=tls,
                server_hostname=host if tls is not None else None,
                limit=_MAX_HEAD_BYTES,
            )
        except OSError as failed:
            error = failed
    assert error is not None
    raise error


async def _addresses(host: str, port: int) -> list[str]:
    """The addresses of a host. Calls at the same time share a lookup, and so one thread."""
    loop = asyncio.get_running_loop()
    key = (loop, host, port)
    looking = _looking.get(key)
    if looking is None:
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        looking = _looking[key] = loop.run_in_executor(_LOOKUPS, look_up)
        looking.add_done_callback(partial(_looked_up, key))
    # Shielded: this call may be out of time, and others wait for the same answer.
    found = await asyncio.shield(looking)
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


def _looked_up(key: _Lookup, looking: asyncio.Future[Any]) -> None:
    del _looking[key]
    if not looking.cancelled():
        looking.exception()  # All calls that waited for it may be out of time.


async def _read_reply(reader: asyncio.StreamReader) -> Reply:
    """Read the head of the final reply, after interim ones."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = line.partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdigit()):
            raise CallFailed("the reply is not HTTP")
        status = int(code)
        if status >= 200:
            return Reply(status, _retry_after(lines))


def _retry_after(lines: list[str]) -> int | None:
    for line in lines:
        name, _, value = line.partition(":")
        text = value.strip()
        if name.lower() == "retry-after" and text.isascii() and text.isdigit():
            return min(int(text[:9]), _MAX_RETRY_AFTER_S) * 1000
    return None


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
