"""The base of the client's classes: calls to one server, and the encoding of bodies.

The server refuses bad input with the broker's own errors. The client refuses it only if it could
not be sent, or if the server's decoder would refuse it. Then it runs the broker's checks, so
that a program gets the same error either way (E1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import msgspec

from penstock.client.address import Address, with_query
from penstock.client.calling import Answer, Calls, read
from penstock.client.options import ClientOptions
from penstock.client.transport import Request
from penstock.errors import BadInput
from penstock.wire.codecs import MSGPACK, encode_msgpack

__all__ = ["UNENCODABLE", "Scope", "encoded"]

T = TypeVar("T")

#: The encoder's errors for values that MessagePack cannot represent.
UNENCODABLE: Final = (
    TypeError,
    ValueError,
    OverflowError,
    RecursionError,
    msgspec.MsgspecError,
)


def encoded(body: object, check: Callable[[], object]) -> bytes:
    """The body in MessagePack; if it cannot be encoded, ``check`` may raise a better error."""
    try:
        return encode_msgpack(body)
    except UNENCODABLE as error:
        check()
        raise BadInput(f"The call cannot be sent: {error}.", field="body") from error


class Scope:
    """One server, with one credential."""

    def __init__(self, calls: Calls, address: Address, options: ClientOptions) -> None:
        self._calls = calls
        self._address = address
        self._options = options

    def _target(self, path: str) -> str:
        return self._address.path + path

    async def _get(
        self,
        decoder: msgspec.msgpack.Decoder[T],
        path: str,
        query: Iterable[tuple[str, object]] = (),
        *,
        timeout_ms: int = 0,
        waits: bool = False,
    ) -> T:
        target = self._target(with_query(path, query))
        request = Request("GET", target, timeout_ms=timeout_ms, waits=waits)
        return read(decoder, await self._calls.call(request))

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        query: Iterable[tuple[str, object]] = (),
        repeatable: bool = True,
        timeout_ms: int = 0,
    ) -> Answer:
        target = self._target(with_query(path, query))
        return await self._calls.call(
            Request(method, target, body, MSGPACK, repeatable, timeout_ms)
        )

    @property
    def _bulk_ms(self) -> int:
        """The time that a bulk verb may take in addition to the ordinary timeout."""
        return self._options.bulk_timeout_ms
