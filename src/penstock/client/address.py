"""Where a server is: its URL taken apart, checked, and put together with paths.

A credential may stand in the URL, as ``http://:KEY@host``; it is taken out of it, so that it
appears in no message of an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit

from yarl import URL

from penstock.errors import BadInput, BadUrl

__all__ = ["Address", "check_credential", "parse_address"]

_SCHEMES: Final = ("http", "https")
_FORMS: Final = "a server's URL looks like http://localhost:8080 or https://queue.example.org"
#: Paths are made of names of topics and queues; those in use stay.
_REMEMBERED: Final = 4096


class Address:
    """One server, and the URLs below it."""

    def __init__(self, base: str, credential: str | None) -> None:
        self.base = base
        """Scheme, host, port and what the server's paths begin with; no credential."""
        self.credential = credential
        # Parsing a URL costs as much as encoding ten messages.
        self.url = lru_cache(maxsize=_REMEMBERED)(self._url)

    @property
    def is_secure(self) -> bool:
        """Whether TLS is spoken."""
        return self.base.startswith("https:")

    def asking(self, path: str, query: Iterable[tuple[str, object]]) -> URL:
        """The URL of a path with a query; what is None is left out."""
        given = [(name, _text(value)) for name, value in query if value is not None]
        text = urlencode(given, quote_via=quote, errors="surrogatepass")
        return URL(f"{self.base}{path}?{text}" if text else self.base + path, encoded=True)

    def _url(self, path: str) -> URL:
        return URL(self.base + path, encoded=True)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def parse_address(url: object) -> Address:
    """The address that a URL means, or ``BadUrl``."""
    if not isinstance(url, str):
        raise _bad(f"The URL is {type(url).__name__}; {_FORMS}.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _bad(f"The URL cannot be read: {error}; {_FORMS}.") from error
    if parts.scheme not in _SCHEMES:
        raise _bad(f"The URL's scheme is {parts.scheme!r}; {_FORMS}.")
    if not parts.hostname or port == 0 or any(not " " < letter < "\x7f" for letter in url):
        raise _bad(f"The URL has no host, or one that cannot be; {_FORMS}.")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise _bad(f"The URL has a query or a fragment; {_FORMS}.")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    place = host if port is None else f"{host}:{port}"
    base = f"{parts.scheme}://{place}{parts.path.rstrip('/')}"
    try:
        URL(base, encoded=True)
    except ValueError as error:
        raise _bad(f"The URL cannot be read: {error}; {_FORMS}.") from error
    return Address(base, _credential_in(parts))


def _credential_in(parts: SplitResult) -> str | None:
    if parts.username is None and parts.password is None:
        return None
    if parts.username or not parts.password:
        raise _bad("A credential stands in the URL as http://:KEY@host; there are no user names.")
    return unquote(parts.password)


def check_credential(credential: object) -> str:
    """Return what can be sent as a bearer credential."""
    if not isinstance(credential, str) or not credential:
        raise BadInput("A credential is an API key or a JWT, as text.", field="credential")
    if any(not " " < letter < "\x7f" for letter in credential):
        raise BadInput(
            "The credential has spaces, line ends or letters that no credential has.",
            field="credential",
        )
    return credential


def _bad(detail: str) -> BadUrl:
    return BadUrl(detail, field="url")
