"""How a connection to a database is encrypted, and whether the database proves who it is."""

from __future__ import annotations

import ssl
from enum import IntEnum

from msgspec import Struct

from penstock.errors import BadUrl

__all__ = ["Security", "Tls", "to_context"]


class Security(IntEnum):
    """What is asked of a connection, from nothing to everything."""

    NONE = 0
    IF_OFFERED = 1
    """Encrypted if the database can; nobody proves anything."""
    ENCRYPTED = 2
    """Or not at all. Where an authority is named, it has to have signed the certificate."""
    KNOWN_AUTHORITY = 3
    """An authority that is trusted signed the certificate, for whatever host."""
    KNOWN_HOST = 4
    """And it is this host's."""


class Tls(Struct, frozen=True):
    """What the URL says about TLS; files are PEM."""

    security: Security
    authority: str | None = None
    """Whoever it holds is trusted, instead of whom the system trusts."""
    certificate: str | None = None
    key: str | None = None


def to_context(tls: Tls) -> ssl.SSLContext | bool | None:
    """A context; False for no encryption, and None for encryption where it is offered."""
    if tls.security == Security.NONE:
        return False
    if tls.security == Security.IF_OFFERED:
        return None
    proven = tls.security > Security.ENCRYPTED or tls.authority is not None
    try:
        context = ssl.create_default_context(cafile=tls.authority)
        if tls.certificate is not None:
            # An encrypted key would ask for its password on the terminal.
            context.load_cert_chain(tls.certificate, tls.key, password="")
    except OSError as error:
        files = ", ".join(filter(None, (tls.authority, tls.certificate, tls.key)))
        raise BadUrl(f"{files} cannot be used for TLS: {_words(error)}.", field="url") from error
    context.check_hostname = tls.security == Security.KNOWN_HOST
    context.verify_mode = ssl.CERT_REQUIRED if proven else ssl.CERT_NONE
    return context


def _words(error: OSError) -> str:
    return error.strerror or str(error)
