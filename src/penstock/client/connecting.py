"""``penstock.connect(url)``: a client for the server, or the servers, at a URL."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from penstock.client.address import Address, parse_address
from penstock.client.calling import Calls
from penstock.client.client import Client
from penstock.client.credentials import CredentialSource, check_source
from penstock.client.failover import Failover
from penstock.client.options import ClientOptions, check_options
from penstock.client.transport import MakeTransport, Transport
from penstock.errors import BadInput, BadUrl

__all__ = ["connect", "tls_context"]


def connect(
    url: str | Sequence[str],
    *,
    credential: CredentialSource | None = None,
    ca: str | ssl.SSLContext | None = None,
    cert: str | None = None,
    key: str | None = None,
    options: ClientOptions | None = None,
    transport: MakeTransport | None = None,
) -> Client:
    """A client for the server at ``url``. Nothing is sent before the first call.

    ::

        q = penstock.connect(url)  # in any place; each call connects if necessary
        async with penstock.connect(url) as q:
            ...  # closes it at the end

    Several URLs, as a list or separated by commas, are servers of one store: if one cannot be
    reached or is not ready, or hangs while another one writes, calls go to the next. A call is
    repeated there only if it may be repeated on the same server.

    ``credential`` is an API key or a JWT; the URL may contain it instead, as
    ``https://:KEY@host``. For one that changes it is ``file:/path``, read again when the file
    changes, or a function, called again when the server refuses the last one. ``ca`` is a file
    with the certificate authorities of an ``https`` server, if they are not the system's, or an
    ``SSLContext``. ``cert`` and ``key`` are files
    with the client's certificate and its key; without ``key``, ``cert`` contains both.
    ``transport`` makes the object that exchanges requests with one server, for example through
    a proxy (``penstock.client.transport.Exchanges``).
    """
    checked = check_options(options or ClientOptions())
    addresses = _addresses(url)
    tls = tls_context(ca, cert, key, addresses[0])
    make = Transport if transport is None else transport
    if not callable(make):
        raise BadInput("transport must be a function that makes a transport.", field="transport")
    transports = [
        make(address, _credential(credential, address), tls, checked) for address in addresses
    ]
    exchanges = transports[0] if len(transports) == 1 else Failover(transports, addresses[0].path)
    place = ", ".join(address.url for address in addresses)
    return Client(Calls(exchanges, place, checked), addresses[0], checked)


def _addresses(url: str | Sequence[str]) -> list[Address]:
    urls = [part.strip() for part in url.split(",")] if isinstance(url, str) else url
    addresses = [
        parse_address(item) for item in (urls if isinstance(urls, list | tuple) else [url])
    ]
    if not addresses:
        raise BadUrl("There is no URL.", field="url")
    first = addresses[0]
    if any((item.scheme, item.path) != (first.scheme, first.path) for item in addresses):
        raise BadUrl("The URLs must have the same scheme and the same path.", field="url")
    return addresses


def _credential(credential: CredentialSource | None, address: Address) -> CredentialSource | None:
    if credential is not None and address.credential is not None:
        raise BadInput(
            "There are credentials in the URL and in the call; give one.", field="credential"
        )
    chosen = address.credential if credential is None else credential
    if chosen is not None:
        check_source(chosen)
    return chosen


def tls_context(
    ca: str | ssl.SSLContext | None, cert: str | None, key: str | None, address: Address
) -> ssl.SSLContext | None:
    """The TLS of connections to ``address``, as described in ``connect``; None for http."""
    given = {"ca": ca, "cert": cert, "key": key}
    if not address.is_secure:
        for field, value in given.items():
            if value is not None:
                raise BadUrl(f"{field} is for https, and the URL is http.", field=field)
        return None
    if key is not None and cert is None:
        raise BadInput("key is the key of cert, which is missing.", field="key")
    if isinstance(ca, ssl.SSLContext):
        if cert is not None:
            raise BadInput("Load the certificate into the SSLContext.", field="cert")
        return ca
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"The CA file {ca!r} cannot be read: {error}.", field="ca") from error
    if cert is not None:
        try:
            context.load_cert_chain(cert, key)
        except (OSError, ValueError, TypeError) as error:
            raise BadInput(
                f"The certificate {cert!r} or its key cannot be read: {error}.", field="cert"
            ) from error
    return context
