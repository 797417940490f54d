"""A server's address: its URL, parsed and checked, and the paths below it.

The URL may contain a credential, as ``http://:KEY@host``. It is removed from the URL, so that
it appears in no error message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit

from msgspec import Struct

from penstock.errors import BadInput, BadUrl

__all__ = ["Address", "check_credential", "parse_address", "with_query"]

_PORTS: Final = {"http": 80, "https": 443}
_FORMS: Final = "a server's URL looks like http://localhost:8080 or https://queue.example.org"


class Address(Struct, frozen=True, kw_only=True):
    """One server."""

    scheme: str
    host: str
    port: int
    place: str
    """Host and port as written in the URL."""
    path: str = ""
    """The prefix of the server's paths, for example behind a proxy."""
    credential: str | None = None

    @property
    def url(self) -> str:
        """The URL, without the credential."""
        return f"{self.scheme}://{self.place}{self.path}"

    @property
    def is_secure(self) -> bool:
        """Whether the connection uses TLS."""
        return self.scheme == "https"


def with_query(path: str, query: Iterable[tuple[str, object]]) -> str:
    """The path with a query, without the parameters that are None."""
    given = [(name, _text(value)) for name, value in query if value is not None]
    if not given:
        return path
    return f"{path}?{urlencode(given, quote_via=quote, errors='surrogatepass')}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def parse_address(url: object) -> Address:
    """The address in a URL, or ``BadUrl``."""
    if not isinstance(url, str):
        raise _bad(f"The URL is {type(url).__name__}; {_FORMS}.")
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise _bad(f"The URL cannot be read: {error}; {_FORMS}.") from error
    if parts.scheme not in _PORTS:
        raise _bad(f"The URL's scheme is {parts.scheme!r}; {_FORMS}. penstock.open opens a store.")
    if (
        not host
        or not _is_name(host)
        or port == 0
        or any(not " " < letter < "\x7f" for letter in url)
    ):
        raise _bad(f"The URL has no host, or an invalid one; {_FORMS}.")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise _bad(f"The URL has a query or a fragment; {_FORMS}.")
    shown = f"[{host}]" if ":" in host else host
    return Address(
        scheme=parts.scheme,
        host=host,
        port=_PORTS[parts.scheme] if port is None else port,
        place=shown if port is None else f"{shown}:{port}",
        path=parts.path.rstrip("/"),
        credential=_credential_in(parts),
    )


def _is_name(host: str) -> bool:
    """Whether each label has 1 to 63 characters: others cannot be looked up."""
    return all(0 < len(label) < 64 for label in host.removesuffix(".").split("."))


def _credential_in(parts: SplitResult) -> str | None:
    if parts.username is None and parts.password is None:
        return None
    if parts.username or not parts.password:
        raise _bad("Write a credential in the URL as http://:KEY@host; there are no user names.")
    return unquote(parts.password)


def check_credential(credential: object) -> str:
    """Return the credential if it can be sent as a bearer token."""
    if not isinstance(credential, str) or not credential:
        raise BadInput("A credential is an API key or a JWT, as text.", field="credential")
    if any(not " " < letter < "\x7f" for letter in credential):
        raise BadInput(
            "The credential has spaces, line ends or other characters that none may have.",
            field="credential",
        )
    return credential


def _bad(detail: str) -> BadUrl:
    return BadUrl(detail, field="url")
