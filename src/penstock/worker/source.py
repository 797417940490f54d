"""The source of an app's messages: a server, a store, or an object that has the verbs."""

from __future__ import annotations

import contextlib
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from penstock.api import QueueApi
from penstock.errors import BadInput

if TYPE_CHECKING:
    from penstock.client.credentials import CredentialSource

__all__ = ["opened"]


def opened(
    where: str | QueueApi, credential: CredentialSource | None, **connection: Any
) -> AbstractAsyncContextManager[QueueApi]:
    """The verbs over ``where``. An object that was passed in is not closed.

    ``connection`` are further arguments of ``penstock.connect``.
    """
    # Imported lazily: a worker of a server needs no engine, and one of a store no HTTP client.
    if not isinstance(where, str):
        return contextlib.nullcontext(where)
    if where.startswith(("http:", "https:")):
        from penstock.client import connect  # noqa: PLC0415

        return connect(where, credential=credential, **connection)
    for field, value in {"credential": credential, **connection}.items():
        if value is not None:
            raise BadInput(f"A store in this process takes no {field}.", field=field)
    from penstock.opening import open as open_store  # noqa: PLC0415

    return open_store(where)
