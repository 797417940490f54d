"""TLS: the files are read and tested before the server starts.

A key that does not match its certificate should stop the server at startup, with the name of
the setting, instead of failing the handshake of the first client.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from msgspec import Struct

from penstock.errors import BadSetting

__all__ = ["Tls", "check_tls", "tls_context"]

#: A certificate chain has a few kilobytes, a bundle of authorities a few hundred.
_MAX_BYTES: Final = 4 * 1024 * 1024
#: The only key format that is accepted. OpenSSL reads more, but reports a file that is no key
#: and a key of another certificate with the same error.
_PKCS8: Final = b"-----BEGIN PRIVATE KEY-----"


class Tls(Struct, frozen=True):
    """PEM files that were loaded successfully."""

    cert: Path
    key: Path
    client_ca: Path | None = None
    """If set, clients must present a certificate that this authority signed."""


def check_tls(cert: Path | None, key: Path | None, client_ca: Path | None = None) -> Tls | None:
    """Check the files and return them; None if TLS is not configured."""
    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None:
        missing = "tls_cert" if cert is None else "tls_key"
        raise BadSetting(f"TLS needs a certificate and a key; {missing} is missing.", field=missing)
    _read("tls_cert", cert)
    if _PKCS8 not in _read("tls_key", key):
        raise BadSetting(
            f"tls_key {key} is not an unencrypted PKCS #8 key in PEM. Convert it with"
            " `openssl pkcs8 -topk8 -nocrypt -in KEY -out NEW`.",
            field="tls_key",
        )
    if client_ca is not None:
        _read("tls_client_ca", client_ca)
    tls = Tls(cert, key, client_ca)
    tls_context(tls)
    return tls


def tls_context(tls: Tls) -> ssl.SSLContext:
    """How to encrypt connections; raises ``BadSetting`` if the files do not fit together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    cert, key = tls.cert, tls.key
    try:
        # Without an explicit password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:
        raise BadSetting(
            f"tls_cert {cert} and tls_key {key} do not fit together or cannot be read: {error}.",
            field="tls_cert",
        ) from error
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _load_authority(context, tls.client_ca)
    return context


def _load_authority(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise BadSetting(
            f"tls_client_ca {path} has no certificate in PEM: {error}.", field="tls_client_ca"
        ) from error


def _read(field: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise BadSetting(
            f"{field} {path} cannot be read: {error.strerror}.", field=field
        ) from error
    if len(content) > _MAX_BYTES:
        raise BadSetting(
            f"{field} {path} has more than {_MAX_BYTES} bytes.", field=field, limit=_MAX_BYTES
        )
    return content
