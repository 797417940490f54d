"""Encryption of a connection to a database, and verification of the database's certificate."""

from __future__ import annotations

import ssl
from enum import IntEnum

from msgspec import Struct

from penstock.errors import BadUrl

__all__ = ["Security", "Tls", "to_context"]


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
