"""Where an app's messages come from: a server, a store, or what somebody has opened already."""

from __future__ import annotations

import contextlib
from contextlib import AbstractAsyncContextManager

from penstock.errors import BadInput
from penstock.verbs import Verbs

__all__ = ["opened"]


def opened(where: str | Verbs, credential: str | None) -> AbstractAsyncContextManager[Verbs]:
    """The verbs over ``where``. What came in open is not closed."""
    # Imported when it is used: a worker of a server needs no engine, and the other way round.
    if not isinstance(where, str):
        return contextlib.nullcontext(where)
    if where.startswith(("http:", "https:")):
        from penstock.client import connect  # noqa: PLC0415

        return connect(where, credential=credential)
    if credential is not None:
        raise BadInput("A store in this process asks for no credential.", field="credential")
    from penstock.opening import open as open_store  # noqa: PLC0415

    return open_store(where)
