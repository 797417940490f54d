"""Request heads: what the application refuses, though the head itself can be parsed (RFC 9112).

``server.http.request_head`` has parsed it already and decided where the request ends. Here the
host, headers that may occur only once and content codings are checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Final

from penstock.errors import BadInput, PenstockError, UnsupportedMedia

__all__ = ["check_head", "ends_connection"]

#: Headers that may occur once: we would ignore a second value, another parser might use it.
_SINGLE: Final = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-type",
        b"expect",
        b"host",
        b"origin",
        b"traceparent",
    }
)
_FRAMING: Final = frozenset({"Content-Length", "Host", "Transfer-Encoding", "head"})
_OWN: Final = b"penstock-"


def check_head(scope: MutableMapping[str, Any], headers: Mapping[bytes, bytes]) -> None:
    """Raise ``BadInput`` or ``UnsupportedMedia`` for a head that is ambiguous or not supported.

    ``headers`` are those of the scope, with the last value of each. A head that the HTTP server
    could not parse comes with the ``error`` to raise.
    """
    if scope.get("error") is not None:
        raise scope["error"]
    given = scope["headers"]
    if len(given) != len(headers):
        _check_repeated(given)
    if not headers.get(b"host") and scope.get("http_version") == "1.1":
        raise BadInput("An HTTP/1.1 request must have a Host header.", field="Host")
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
        raise UnsupportedMedia(
            "A body with a Content-Encoding is not supported: send it uncompressed.",
            field="Content-Encoding",
        )


def ends_connection(error: PenstockError) -> bool:
    """Whether to close the connection after refusing the request.

    The caller, or a proxy in front of it, may disagree about where the next request begins.
    """
    return type(error) is BadInput and error.field in _FRAMING


def _check_repeated(given: Iterable[tuple[bytes, bytes]]) -> None:
    for name, times in Counter(name for name, _ in given).items():
        if times > 1 and (name in _SINGLE or name.startswith(_OWN)):
            field = name.decode("latin-1").title()
            raise BadInput(f"The header {field} is given {times} times.", field=field)
