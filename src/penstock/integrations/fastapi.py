"""Penstock in a FastAPI application: one connection, from startup to shutdown.

::

    app = FastAPI(lifespan=lifespan("http://localhost:8080"))
    install_error_handler(app)


    @app.post("/orders")
    async def order(body: Order, q: Queue) -> int:
        return (await q.publish("orders", body)).id

Only ``Request.state`` and ASGI's lifespan are used, so ``lifespan`` works with Starlette too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypedDict

from penstock.api import QueueApi
from penstock.errors import PenstockError, Unreachable
from penstock.extras import importing
from penstock.wire.codecs import encode_json
from penstock.wire.problems import retry_after_s, to_problem
from penstock.worker import App
from penstock.worker.source import opened

with importing("fastapi", "fastapi", "starlette"):
    from fastapi import Depends, FastAPI, Request
    from starlette.responses import Response

if TYPE_CHECKING:
    import ssl

    from penstock.client import ClientOptions
    from penstock.client.credentials import CredentialSource

__all__ = ["Queue", "State", "install_error_handler", "lifespan", "verbs"]


#: When to try again if the server does not answer.
_RETRY_S: Final = 1


class State(TypedDict):
    """What ``lifespan`` adds to ``request.state``."""

    penstock: QueueApi


def lifespan(
    where: str | QueueApi,
    *,
    credential: CredentialSource | None = None,
    ca: str | ssl.SSLContext | None = None,
    cert: str | None = None,
    key: str | None = None,
    options: ClientOptions | None = None,
    app: App | None = None,
    work: bool = False,
) -> Callable[[Any], AbstractAsyncContextManager[State]]:
    """A lifespan that connects to a server, or opens a store.

    ``credential``, ``ca``, ``cert``, ``key`` and ``options`` are those of ``penstock.connect``.
    Tasks of ``app`` can be sent while the application runs. With ``work`` its handlers run in
    this process too; if they end with an error, the shutdown raises it.
    """

    @asynccontextmanager
    async def connected(_: object) -> AsyncIterator[State]:
        async with opened(where, credential, ca=ca, cert=cert, key=key, options=options) as q:
            if app is None:
                yield State(penstock=q)
                return
            app.bind(q)
            try:
                async with _working(app if work else None):
                    yield State(penstock=q)
            finally:
                app.bind(None)

    return connected


def verbs(request: Request) -> QueueApi:
    """The verbs, as a dependency."""
    q: QueueApi = request.state.penstock
    return q


#: The verbs, as the annotation of a parameter.
Queue: TypeAlias = Annotated[QueueApi, Depends(verbs)]


def install_error_handler(application: FastAPI) -> None:
    """Answer 503 with Retry-After while the queue is full or the server is unavailable.

    Every other error of Penstock is one of the application, and remains a 500.
    """

    async def answer(_: Request, error: Exception) -> Response:
        assert isinstance(error, PenstockError)
        seconds = _RETRY_S if isinstance(error, Unreachable) else retry_after_s(error)
        if seconds is None:
            raise error
        return Response(
            encode_json(to_problem(error)),
            status_code=503,
            headers={"retry-after": str(seconds)},
            media_type="application/problem+json",
        )

    application.add_exception_handler(PenstockError, answer)


@asynccontextmanager
async def _working(app: App | None) -> AsyncIterator[None]:
    if app is None:
        yield
        return
    running = asyncio.create_task(app.run())
    # ``stop`` ends only what has begun, and another part of the application may fail right away.
    await asyncio.sleep(0)
    try:
        yield
    finally:
        app.stop()
        with suppress(asyncio.CancelledError):
            await running
