"""The head of a request: refuse what two HTTP parsers could read in two ways (RFC 9112).

The HTTP server in front of the application (hyper, inside Granian) has parsed it already, and
answers with an empty 400 when it cannot. It is lenient in what is checked here: Host, headers
that may be given once, transfer and content codings.
``tests/service/test_head.py`` shows both what is refused here and what the parser does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Final

from penstock.errors import BadInput, PenstockError, UnsupportedMedia

__all__ = ["check_head", "ends_connection"]

#: Headers whose second value would be ignored here, and might be the one that counts elsewhere.
_SINGLE: Final = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"origin",
        b"traceparent",
        b"transfer-encoding",
    }
)
_FRAMING: Final = frozenset({"Content-Length", "Host", "Transfer-Encoding"})
_OWN: Final = b"penstock-"


def check_head(scope: MutableMapping[str, Any], headers: Mapping[bytes, bytes]) -> None:
    """Raise ``BadInput`` or ``UnsupportedMedia`` for a head that is ambiguous or not supported.

    ``headers`` are those of the scope, of a repeated one the last.
    """
    given = scope["headers"]
    if len(given) != len(headers):
        _check_repeated(given)
    if not headers.get(b"host") and scope.get("http_version") == "1.1":
        raise BadInput("A request of HTTP/1.1 has a Host header.", field="Host")
    coding = headers.get(b"transfer-encoding")
    if coding is not None and coding.strip().lower() != b"chunked":
        raise BadInput("The only Transfer-Encoding is chunked, alone.", field="Transfer-Encoding")
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
        raise UnsupportedMedia(
            "A body with a Content-Encoding is not read here: send it uncompressed.",
            field="Content-Encoding",
        )


def ends_connection(error: PenstockError) -> bool:
    """Whether the connection is closed after the refusal.

    Where the next request begins may not be what the caller, or a proxy before it, believes.
    """
    return type(error) is BadInput and error.field in _FRAMING


def _check_repeated(given: Iterable[tuple[bytes, bytes]]) -> None:
    for name, times in Counter(name for name, _ in given).items():
        if times > 1 and (name in _SINGLE or name.startswith(_OWN)):
            field = name.decode("latin-1").title()
            raise BadInput(f"The header {field} is given {times} times.", field=field)
