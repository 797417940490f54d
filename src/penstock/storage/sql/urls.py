"""The address of a database, from the URL of its store.

``postgresql://user:password@host:port/database?option=value&…``, and the same with ``mysql``.
A part that contains one of ``:/?#[]@%`` must be percent-encoded. A password never appears in a
message, a ``repr`` or a log; ``Address.shown`` is safe to print. TLS is in ``tls``.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, TypeAlias
from urllib.parse import SplitResult, quote, unquote, urlsplit

from msgspec import Struct

from penstock.errors import BadUrl
from penstock.model.secrets import MASK, mask_password

__all__ = ["DEFAULT_POOL", "MAX_POOL", "Address", "Security", "Tls", "parse", "to_context"]


# -- TLS ----------------------------------------------------------------------------------
# Encryption of a connection to a database, and verification of the database's certificate.


class Security(IntEnum):
    """The requirements on a connection, from none to all."""

    NONE = 0
    IF_OFFERED = 1
    """Encrypted if the database supports it; no certificate is verified."""
    ENCRYPTED = 2
    """Required. If an authority is configured, it must have signed the certificate."""
    KNOWN_AUTHORITY = 3
    """A trusted authority must have signed the certificate, for any host."""
    KNOWN_HOST = 4
    """A trusted authority must have signed the certificate, for this host."""


class Tls(Struct, frozen=True):
    """The TLS options of a URL; files are PEM."""

    security: Security
    authority: str | None = None
    """The trusted authorities, instead of the system's."""
    certificate: str | None = None
    key: str | None = None


def to_context(tls: Tls) -> ssl.SSLContext | bool | None:
    """A context; False for no encryption, and None for encryption if it is offered."""
    if tls.security == Security.NONE:
        return False
    if tls.security == Security.IF_OFFERED:
        return None
    proven = tls.security > Security.ENCRYPTED or tls.authority is not None
    try:
        context = ssl.create_default_context(cafile=tls.authority)
        if tls.certificate is not None:
            # Without it, an encrypted key would prompt for its password on the terminal.
            context.load_cert_chain(tls.certificate, tls.key, password="")
    except OSError as error:
        files = ", ".join(filter(None, (tls.authority, tls.certificate, tls.key)))
        raise BadUrl(f"{files} cannot be used for TLS: {_words(error)}.", field="url") from error
    context.check_hostname = tls.security == Security.KNOWN_HOST
    context.verify_mode = ssl.CERT_REQUIRED if proven else ssl.CERT_NONE
    return context


def _words(error: OSError) -> str:
    return error.strerror or str(error)


# -- addresses ----------------------------------------------------------------------------

DEFAULT_POOL: Final = 10
MAX_POOL: Final = 100
_CONNECT_TIMEOUT_S: Final = 10
_STATEMENT_TIMEOUT_S: Final = 30
_MAX_TIMEOUT_S: Final = 600
_MAX_PORT: Final = 65_535

#: ``user:password@[host]:port``; the last @ ends the password.
_AUTHORITY: Final = re.compile(
    r"(?:(?P<user>[^:@]*)(?::(?P<password>.*))?@)?(?:\[(?P<six>[^\]]*)\]|(?P<host>[^:\[\]]*))"
    r"(?::(?P<port>[^:]*))?",
)
_HINT: Final = "percent-encode everything but letters and digits in users, passwords and names"


class Address(Struct, frozen=True, kw_only=True):
    """A database, the user that connects to it, and the connection options."""

    scheme: str
    host: str
    """Or, for PostgreSQL, the directory of its Unix sockets, which begins with a slash."""
    port: int
    unix_socket: str | None
    """For MySQL, the socket to use instead of the host, which is then empty."""
    user: str | None
    password: str | None
    database: str
    pool: int
    """The maximum number of connections of a process."""
    connect_timeout: int
    """Seconds."""
    statement_timeout: int
    """Seconds that a statement may take, including waits for locks."""
    security: Tls

    def tls(self) -> ssl.SSLContext | bool | None:
        """A context; False for no encryption, and None for encryption if it is offered."""
        return to_context(self.security)

    @property
    def shown(self) -> str:
        """The address without the password and the options."""
        user = "" if self.user is None else quote(self.user, safe="")
        password = "" if self.password is None else f":{MASK}"
        at = "@" if user or password else ""
        database = quote(self.database, safe="")
        if self.unix_socket is not None:
            place = f"/{database}?unix_socket={quote(self.unix_socket)}"
        elif self.host.startswith("/"):
            place = f":{self.port}/{database}?host={quote(self.host)}"
        else:
            host = f"[{self.host}]" if ":" in self.host else self.host
            place = f"{host}:{self.port}/{database}"
        return f"{self.scheme}://{user}{password}{at}{place}"

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        # A Struct would otherwise show all of its fields here, too.
        return [("shown", self.shown)]


Reader: TypeAlias = Callable[["_Reading", str], Any]


class _Reading:
    """One URL while it is parsed; every error names the URL, without its password."""

    def __init__(self, url: str) -> None:
        self._shown = mask_password(repr(url))

    def refuse(self, why: str, *, field: str = "url", limit: int | str | None = None) -> BadUrl:
        return BadUrl(f"{self._shown}: {why}.", field=field, limit=limit)

    def decoded(self, text: str, what: str) -> str:
        try:
            found = unquote(text, errors="strict")
        except UnicodeDecodeError:
            raise self.refuse(f"the {what} is not valid UTF-8") from None
        if not all(" " <= character != "\x7f" for character in found):
            raise self.refuse(f"the {what} contains a control character")
        return found

    def number(self, text: str, what: str, low: int, high: int) -> int:
        # The text is not quoted in the message: it may be a part of a password.
        if text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high:
            return int(text)
        raise self.refuse(
            f"{what} must be a whole number from {low} to {high}", field=what, limit=high
        )


def _pool(reading: _Reading, text: str) -> int:
    return reading.number(text, "pool", 1, MAX_POOL)


def _timeout(name: str) -> Reader:
    def read(reading: _Reading, text: str) -> int:
        return reading.number(text, name, 1, _MAX_TIMEOUT_S)

    return read


def _text(reading: _Reading, text: str) -> str:
    if not text:
        raise reading.refuse("an option has no value")
    return text


def _one_of(name: str, known: dict[str, Security]) -> Reader:
    def read(reading: _Reading, text: str) -> Security:
        if text in known:
            return known[text]
        raise reading.refuse(f"{name} must be one of {', '.join(known)}", field=name)

    return read


class _Dialect(Struct, frozen=True):
    """The differences between the URLs of the two databases."""

    port: int
    socket: str
    """The option that names a Unix socket."""
    tls: tuple[str, str, str, str]
    """The options for the mode, the authority, the certificate and its key."""
    modes: dict[str, Security]

    def options(self) -> dict[str, Reader]:
        mode, *files = self.tls
        return {
            "pool": _pool,
            "connect_timeout": _timeout("connect_timeout"),
            "statement_timeout": _timeout("statement_timeout"),
            self.socket: _text,
            mode: _one_of(mode, self.modes),
            **dict.fromkeys(files, _text),
        }


_DIALECTS: Final = {
    "postgresql": _Dialect(
        5432,
        "host",
        ("sslmode", "sslrootcert", "sslcert", "sslkey"),
        {
            "disable": Security.NONE,
            "prefer": Security.IF_OFFERED,
            "require": Security.ENCRYPTED,
            "verify-ca": Security.KNOWN_AUTHORITY,
            "verify-full": Security.KNOWN_HOST,
        },
    ),
    "mysql": _Dialect(
        3306,
        "unix_socket",
        ("ssl-mode", "ssl-ca", "ssl-cert", "ssl-key"),
        {
            "DISABLED": Security.NONE,
            "PREFERRED": Security.IF_OFFERED,
            "REQUIRED": Security.ENCRYPTED,
            "VERIFY_CA": Security.KNOWN_AUTHORITY,
            "VERIFY_IDENTITY": Security.KNOWN_HOST,
        },
    ),
}


def parse(url: str) -> Address:
    """Parse ``url``; raises ``BadUrl`` with the reason."""
    reading = _Reading(url)
    parts = _split(reading, url)
    dialect = _DIALECTS[parts.scheme]
    found = _AUTHORITY.fullmatch(parts.netloc)
    if found is None:
        raise reading.refuse(f"the part before the database is not a host and a port; {_HINT}")
    given = _options(reading, dialect, parts.query)
    host = reading.decoded(found["six"] or found["host"] or "", "host")
    host = _place(reading, dialect, host, given.get(dialect.socket))
    is_file = parts.scheme == "mysql" and host.startswith("/")
    mode, authority, certificate, key = (given.get(name) for name in dialect.tls)
    if (certificate is None) != (key is None):
        raise reading.refuse(f"{dialect.tls[2]} and {dialect.tls[3]} must be given together")
    return Address(
        scheme=parts.scheme,
        host="" if is_file else host,
        port=reading.number(found["port"] or str(dialect.port), "port", 1, _MAX_PORT),
        unix_socket=host if is_file else None,
        user=reading.decoded(found["user"], "user") if found["user"] else None,
        password=_password(reading, found["password"]),
        database=_database(reading, parts.path),
        pool=given.get("pool", DEFAULT_POOL),
        connect_timeout=given.get("connect_timeout", _CONNECT_TIMEOUT_S),
        statement_timeout=given.get("statement_timeout", _STATEMENT_TIMEOUT_S),
        security=Tls(Security.IF_OFFERED if mode is None else mode, authority, certificate, key),
    )


def _split(reading: _Reading, url: str) -> SplitResult:
    if not url.isprintable() or " " in url:
        raise reading.refuse("it contains a space or a control character")
    try:
        parts = urlsplit(url)
    except ValueError:
        # Not chained: the original message may quote the password.
        raise reading.refuse(f"it is not a URL; {_HINT}") from None
    if parts.scheme not in _DIALECTS:
        raise reading.refuse(f"its scheme must be one of {', '.join(_DIALECTS)}")
    if parts.fragment or "#" in url:
        raise reading.refuse(f"# must be written as %23; {_HINT}")
    return parts


def _options(reading: _Reading, dialect: _Dialect, query: str) -> dict[str, Any]:
    known = dialect.options()
    found: dict[str, Any] = {}
    for item in filter(None, query.split("&")):
        name, _, text = item.partition("=")
        name = reading.decoded(name, "name of an option")
        if name not in known:
            raise reading.refuse(
                f"there is no option {mask_password(repr(name))}; options are {', '.join(known)}"
            )
        if name in found:
            raise reading.refuse(f"{name} is given twice", field=name)
        found[name] = known[name](reading, reading.decoded(text, name))
    return found


def _place(reading: _Reading, dialect: _Dialect, host: str, option: str | None) -> str:
    """The host, or the path of a socket."""
    if host and option is not None:
        raise reading.refuse(f"it names a host twice, before the database and as {dialect.socket}")
    if option is not None and not option.startswith("/"):
        raise reading.refuse(
            f"{dialect.socket} must be an absolute path; a host goes before the database",
            field=dialect.socket,
        )
    if "," in host:
        raise reading.refuse("it names several hosts; a store has one")
    if not host and option is None:
        raise reading.refuse("it names no host")
    return option or host


def _password(reading: _Reading, text: str | None) -> str | None:
    return None if text is None else reading.decoded(text, "password")


def _database(reading: _Reading, path: str) -> str:
    name = path.removeprefix("/")
    if not name:
        raise reading.refuse("it names no database")
    if "/" in name or "@" in name:
        # Often the rest of a password that contains a slash, so it is not quoted.
        raise reading.refuse(f"the name of the database contains / or @; {_HINT}")
    return reading.decoded(name, "name of the database")
