"""A door whose operations are methods of paths, in one table.

Dispatch, metrics and the tests that call every route without a credential read the same table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from msgspec import Struct

from penstock.server.access import ANYBODY, Credential
from penstock.server.call import Call
from penstock.server.doors.door import Door
from penstock.server.replies import Reply
from penstock.server.routing import Routes

__all__ = ["DoorRoute", "Handler", "PathDoor", "checked"]

Handler: TypeAlias = Callable[[Call], Awaitable[Reply]]


class DoorRoute(Struct, frozen=True):
    """One method of one path."""

    method: str
    path: str
    verb: str
    """Names the operation in metrics, after the name of the door."""
    handler: Handler
    is_open: bool = False
    """No credential is needed, also with auth."""


def checked(check: Callable[[Credential], None], handler: Handler) -> Handler:
    """The handler, after a check of the caller that raises if it refuses."""

    async def answer(call: Call) -> Reply:
        check(call.credential)
        return await handler(call)

    return answer


class PathDoor(Door):
    """Finds its operations by method and path."""

    def __init__(self, routes: Iterable[DoorRoute]) -> None:
        self.routes = Routes(routes)

    def find(self, call: Call) -> None:
        """Find the route; raises ``UnknownRoute`` or ``MethodNotAllowed``."""
        route, call.parameters = self.routes.find(call.method, call.path)
        call.found = route
        call.verb = f"{self.name}.{route.verb}"

    async def authenticate(self, call: Call) -> Credential:
        """The credential of the Authorization header, or anybody's if the route is open."""
        route: DoorRoute = call.found
        return ANYBODY if route.is_open else await self.identify(call)

    async def identify(self, call: Call) -> Credential:
        """The credential of the Authorization header; a door with its own tokens overrides it."""
        access = call.service.access
        authorization = call.headers.get(b"authorization")
        return access.recall(authorization) or await access.authenticate(authorization)

    async def answer(self, call: Call) -> Reply:
        """Call the route's handler, which checks the grants."""
        route: DoorRoute = call.found
        return await route.handler(call)
