"""The server that an Airflow connection describes."""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import BadInput
from penstock.extras import importing

with importing("airflow", "airflow"):
    from airflow.sdk.bases.hook import BaseHook

__all__ = ["Server", "server_of"]


class Server(NamedTuple):
    """Where a server is, and the credential and certificates for it."""

    url: str
    credential: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


async def server_of(url: str | None, conn_id: str | None) -> Server:
    """The server of a URL or of a connection, whose fields are as of Airflow's type ``http``.

    The password is the credential, and the schema ``https`` means TLS. A host may be a URL. ``ca``,
    ``cert`` and ``key`` among the extras are files, as of ``penstock.connect``.
    """
    if url is not None:
        return Server(url)
    assert conn_id is not None
    found = await BaseHook.aget_connection(conn_id)
    if not found.host:
        raise BadInput(f"The connection {conn_id!r} has no host.", field="conn_id")
    where = found.host if "://" in found.host else f"{found.schema or 'http'}://{found.host}"
    extra = found.extra_dejson
    return Server(
        f"{where}:{found.port}" if found.port else where,
        found.password or None,
        *(extra.get(name) for name in ("ca", "cert", "key")),
    )
