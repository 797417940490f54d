"""Web browsers: pages of other sites must not use a server that requires no credential.

A page on the internet can make its visitor's browser call ``http://localhost:8080``, and a name
that an attacker controls can be made to resolve to 127.0.0.1 after the page was loaded (DNS
rebinding), so that the page may read the replies too. Three checks stop this:

- ``Host`` names this server: an address, a localhost name, the name it listens on, or one of
  ``allowed_hosts``. An address is safe because rebinding needs a name.
- ``Origin`` and ``Sec-Fetch-Site``, which browsers add by themselves, do not name another site,
  unless it is one of ``allowed_origins``.
- A POST has a content type that a form cannot send, or a ``Penstock-`` header. A browser asks
  before it sends either to another site (a CORS preflight), and this server never agrees. PUT,
  PATCH and DELETE need nothing: a browser always asks before it sends those. A GET that claims
  (a stream) needs the same as a POST, unless the browser named the page's site: an image request
  has no ``Origin``, and over plain HTTP to another machine no ``Sec-Fetch-Site`` either.

With ``auth`` every call needs a bearer credential, which a browser does not add by itself. Then
nothing is checked unless ``allowed_hosts`` or ``allowed_origins`` is set.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Final, Self

from penstock.errors import BadSetting, ForeignOrigin, UnsupportedMedia
from penstock.model.limits import shown
from penstock.wire.codecs import JSON, media_type

__all__ = ["Browsers"]

ANY: Final = "*"
#: Where the console's files are.
CONSOLE: Final = "/console"
#: Content types that a page may send to any site without a preflight (the Fetch standard).
_SIMPLE: Final = frozenset(
    {"", "text/plain", "multipart/form-data", "application/x-www-form-urlencoded"}
)
#: Header values cached as good; any beyond this limit are checked each time.
_MAX_REMEMBERED: Final = 1_024
#: Headers in which a browser names the page that makes the request.
_PAGE: Final = frozenset({b"origin", b"sec-fetch-site"})
_HOST: Final = re.compile(r"(?P<name>[^\[\]:@/\s]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_PATTERN: Final = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?")
_ORIGIN: Final = re.compile(r"https?://[^/\s,*]+")


class Browsers:
    """Refuses requests that a page of another site makes a browser send."""

    def __init__(
        self,
        *,
        hosts: Iterable[str] | None,
        origins: Iterable[str] | None,
        needs_header: bool,
    ) -> None:
        self._names = None if hosts is None else frozenset(hosts)
        self._origins = None if origins is None else frozenset(origins)
        self._needs_header = needs_header
        self._good_hosts: set[bytes] = set()
        self._good_types: set[bytes] = {JSON.encode()}

    @classmethod
    def of(
        cls,
        *,
        auth: bool,
        listening: Iterable[str],
        allowed_hosts: str | None,
        allowed_origins: str | None,
    ) -> Self:
        """The checks for a server; ``listening`` has the server's own names and addresses."""
        hosts = _names(allowed_hosts)
        origins = _origin_list(allowed_origins)
        if not auth:
            own = {name.rstrip(".").lower() for name in listening}
            hosts = own | (hosts or set())
            origins = origins or set()
        return cls(hosts=hosts, origins=origins, needs_header=not auth)

    def check(
        self,
        method: str,
        headers: Mapping[bytes, bytes],
        proof: frozenset[bytes] | None = frozenset(),
        *,
        path: str = "",
    ) -> None:
        """Raise ``ForeignOrigin`` or ``UnsupportedMedia`` for a call that a page may have sent.

        ``proof`` has the headers of a door's clients that count like a ``Penstock-`` header; with
        None any content type is accepted. Any page may link to the console: its files are the
        same for everybody.
        """
        host = headers.get(b"host", b"")
        if host not in self._good_hosts:
            self._check_host(host)
        if path.startswith(CONSOLE) and method == "GET":
            return
        if self._origins is not None and not _PAGE.isdisjoint(headers):
            if b"origin" in headers:
                self._check_origin(headers[b"origin"].decode("latin-1"), host)
            else:
                _check_site(headers[b"sec-fetch-site"])
        if self._needs_header and method == "POST" and proof is not None:
            content_type = headers.get(b"content-type", b"")
            if content_type not in self._good_types:
                self._check_type(content_type, headers, proof)

    def check_claim(
        self, headers: Mapping[bytes, bytes], proof: frozenset[bytes] = frozenset()
    ) -> None:
        """Raise ``ForeignOrigin`` for a GET that claims and that a page may have sent.

        The call must have passed ``check``, which validated Origin and Sec-Fetch-Site if present.
        """
        if not self._needs_header or b"origin" in headers or b"sec-fetch-site" in headers:
            return
        kind = media_type(headers.get(b"content-type", b"").decode("latin-1"))
        if kind in _SIMPLE and not _has_own_header(headers, proof):
            raise ForeignOrigin(
                "Any web page could open this stream, and this server asks for no credential."
                " Send a Penstock- header such as Penstock-Request-Id.",
                field="Penstock-Request-Id",
            )

    def _check_host(self, host: bytes) -> None:
        # A browser always sends Host. HTTP/1.1 requires it, which ``head`` checks.
        if host and self._names is not None:
            text = host.decode("latin-1")
            found = _HOST.fullmatch(text)
            if found is None or not _is_named(found["name"].lower(), self._names):
                raise ForeignOrigin(
                    f"This server does not have the name {shown(text)}."
                    " Add the name to allowed_hosts if it should.",
                    field="Host",
                )
        _remember(self._good_hosts, host)

    def _check_origin(self, origin: str, host: bytes) -> None:
        assert self._origins is not None
        own = origin.partition("://")[2]
        if own and own.lower() == host.decode("latin-1").lower():
            return
        if origin.lower() not in self._origins and ANY not in self._origins:
            raise ForeignOrigin(
                f"A page of {shown(origin)} may not call this server."
                " Add it to allowed_origins to allow that.",
                field="Origin",
            )

    def _check_type(
        self, content_type: bytes, headers: Mapping[bytes, bytes], proof: frozenset[bytes]
    ) -> None:
        kind = media_type(content_type.decode("latin-1"))
        if kind not in _SIMPLE:
            _remember(self._good_types, content_type)
            return
        if _has_own_header(headers, proof):
            return
        given = f"the content type {shown(kind)}" if kind else "no content type"
        raise UnsupportedMedia(
            f"A POST with {given} could come from any web page, and this server asks for no"
            " credential. Send Content-Type: application/json, or a Penstock- header such as"
            " Penstock-Request-Id.",
            field="Content-Type",
        )


def _has_own_header(headers: Mapping[bytes, bytes], proof: frozenset[bytes]) -> bool:
    return any(name.startswith(b"penstock-") or name in proof for name in headers)


def _check_site(site: bytes) -> None:
    """Check a request without Origin, such as for an image: the browser states the page's site."""
    if site not in (b"same-origin", b"none"):
        raise ForeignOrigin(
            "A page of another site may not call this server.", field="Sec-Fetch-Site"
        )


def _is_named(name: str, names: frozenset[str]) -> bool:
    name = name.rstrip(".")
    if ANY in names or name in names or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return any(name.endswith(pattern[1:]) for pattern in names if pattern.startswith("*."))
    return True


def _names(text: str | None) -> set[str] | None:
    """The entries of ``allowed_hosts``: names, ``*.example.com``, or ``*`` for any."""
    if text is None:
        return None
    names = {name.lower().rstrip(".") for name in _split(text)}
    for name in names:
        if name != ANY and _PATTERN.fullmatch(name) is None:
            raise BadSetting(
                f"allowed_hosts has {shown(name)}; it is a list of names such as"
                " queue.example.com or *.example.com, without scheme and port.",
                field="allowed_hosts",
            )
    return names


def _origin_list(text: str | None) -> set[str] | None:
    """The entries of ``allowed_origins``: ``https://app.example.com``, or ``*`` for any."""
    if text is None:
        return None
    origins = {origin.lower() for origin in _split(text)}
    for origin in origins:
        if origin != ANY and _ORIGIN.fullmatch(origin) is None:
            raise BadSetting(
                f"allowed_origins has {shown(origin)}; it is a list of origins such as"
                " https://app.example.com, without a path.",
                field="allowed_origins",
            )
    return origins


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _remember(values: set[bytes], value: bytes) -> None:
    if len(values) < _MAX_REMEMBERED:
        values.add(value)
