"""The options of ``format("penstock")`` as typed values, and the server that they name.

Spark passes options as text, in the case in which they were written. An option that is unknown
or not valid for the table is refused with its name (E1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from penstock.client.address import parse_address
from penstock.client.credentials import check_source
from penstock.errors import BadInput
from penstock.model.limits import shown
from penstock.pipeline.format.defaults import PREFIX, default_server, server_of
from penstock.pipeline.remote import Server

__all__ = [
    "SERVER_OPTIONS",
    "Given",
    "is_consumer",
]

#: The options that every use of the format has.
SERVER_OPTIONS: Final = ("url", "credential", "ca", "cert", "certKey", "path")
_TRUTHS: Final = {"true": True, "false": False}


class Given:
    """The given options, by name in any case; each getter returns a typed value or raises."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        #: Settings of the session, which ``penstock.pipeline.register`` passes on.
        self._session = {name: given.pop(name) for name in list(given) if name.startswith(PREFIX)}
        self._options = given

    @property
    def options(self) -> Mapping[str, str]:
        """All of them, with their names in lower case."""
        return {**self._options, **self._session}

    def refuse_others(self, known: Iterable[str], whose: str) -> None:
        """Raise ``BadInput`` for any option that is not in ``known``."""
        names = {name.lower(): name for name in known}
        for name in self._options:
            if name not in names:
                raise BadInput(f"{whose} has no option {shown(name)}{_hint(name, names)}")

    def has(self, name: str) -> bool:
        """Whether the option was given."""
        return name.lower() in self._options

    def text(self, name: str) -> str | None:
        """The option's text; None if it was not given."""
        return self._options.get(name.lower())

    def needed(self, name: str) -> str:
        """The option's text; raises ``BadInput`` if it was not given."""
        value = self.text(name)
        if not value:
            raise BadInput(f"The option {name} is missing.", field=name)
        return value

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        """One of the given words, in any case."""
        value = (self.text(name) or default).lower()
        if value not in choices:
            allowed = ", ".join(choices)
            raise BadInput(f"{name} is {shown(value)}; it is one of {allowed}.", field=name)
        return value

    def truth(self, name: str, default: bool) -> bool:
        """``true`` or ``false``."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in _TRUTHS:
            raise BadInput(f"{name} is {shown(value)}; it is true or false.", field=name)
        return _TRUTHS[value.lower()]

    def number(self, name: str, least: int, most: int) -> int | None:
        """A whole number within limits; None if it was not given."""
        value = self.text(name)
        return None if value is None else _number(name, value, least, most)

    def server(self) -> Server:
        """The server that the options name. Whether it answers shows on the first call.

        Without a URL, it is that of the environment or of the Spark session.
        """
        url, credential, ca = self._url(), self.text("credential"), self.text("ca")
        cert, cert_key = self.text("cert"), self.text("certKey")
        if url is None:
            usual = server_of(self._session) or default_server()
            if usual is None:
                raise BadInput(
                    "The option url is missing, and there is no default: set PENSTOCK_URL before "
                    "Spark starts, or spark.penstock.url.",
                    field="url",
                )
            url, credential, ca = usual.url, credential or usual.credential, ca or usual.ca
            if cert is None:
                cert, cert_key = usual.cert, cert_key or usual.cert_key
        parse_address(url)
        if credential is not None:
            check_source(credential)
        return Server(url, credential, ca, cert, cert_key)

    def _url(self) -> str | None:
        """The option ``url``, or the argument of ``load`` and ``save``."""
        url, path = self.text("url"), self.text("path")
        if self.has("url") and not url:
            return self.needed("url")
        if path is None or path == url:
            return url
        if not path.startswith(("http://", "https://")):
            raise BadInput(
                f"load() gets the URL of a server, like http://localhost:8080, not {shown(path)}.",
                field="path",
            )
        if url is not None:
            raise BadInput(f"url and load({shown(path)}) are two servers.", field="path")
        return path


def _number(name: str, value: str, least: int, most: int) -> int:
    # Twenty digits exceed any limit here, and stay below Python's limit for int().
    good = value.isascii() and value.isdigit() and len(value) <= 20
    if not good or not least <= int(value) <= most:
        raise BadInput(
            f"{name} is {shown(value)}; it is a whole number from {least} to {most}.",
            field=name,
            limit=most,
        )
    return int(value)


def _hint(name: str, names: Mapping[str, str]) -> str:
    close = get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {names[close[0]]}?"
    return f"; it has {', '.join(sorted(names.values()))}."


def is_consumer(given: Given) -> bool:
    """Whether these options select a queue to consume: ``queue`` without ``table``."""
    return given.has("queue") and not given.has("table")
