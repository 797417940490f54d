"""One request in progress: its door, headers, credential and tenant.

The application creates a call before it knows whose it is. ``admit`` gives it the credential that
its door has authenticated, and with it the verbs of one tenant (T1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, MutableMapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.broker import Broker
from penstock.errors import Busy
from penstock.server.access import ANYBODY, Action, Credential
from penstock.server.access.grants import IMPLIED_BY
from penstock.server.budget import Hold
from penstock.server.interruption import Interrupted, Interruption
from penstock.server.request_parsing import Disconnected, Receive
from penstock.server.routing import ANY_NAME, EVERYTHING, AnyRoute, Need
from penstock.telemetry import current_tenant
from penstock.wire.codecs import media_type

if TYPE_CHECKING:
    from penstock.server.doors.door import Door
    from penstock.server.service import Service

__all__ = ["Call"]


@lru_cache(maxsize=256)
def _media_of(header: bytes) -> str:
    return media_type(header.decode("latin-1"))


T = TypeVar("T")

#: Messages per page that are read without waiting for a turn.
_QUICK_PAGE: Final = 100
#: Path parameters that grants apply to; each is the first of its path.
_IN_PATH: Final = ("queue", "topic")


class Call:
    """What the envelope, a door and a handler know about a request, besides query and body."""

    __slots__ = (
        "_leaving",
        "broker",
        "claims",
        "credential",
        "client",
        "door",
        "found",
        "headers",
        "hold",
        "method",
        "parameters",
        "path",
        "query_string",
        "raw",
        "receive",
        "request_id",
        "route",
        "service",
        "verb",
    )

    broker: Broker
    """The verbs, for the caller's tenant (T1); set by ``admit``."""
    found: Any
    """What ``find`` of the door has found, for its ``answer``."""
    door: Door
    """The door that the request came through."""
    route: AnyRoute
    """Set by a door that finds its requests in a table of routes."""

    def __init__(
        self,
        service: Service,
        scope: MutableMapping[str, Any],
        headers: dict[bytes, bytes],
        receive: Receive,
        request_id: str,
        hold: Hold,
    ) -> None:
        self.service = service
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query_string: bytes = scope["query_string"]
        self.client: tuple[str, int] | None = scope.get("client")
        """The address of the caller, or of a proxy."""
        self.headers = headers
        """The last value of each; ``head`` refuses ambiguous ones."""
        self.receive = receive
        self.request_id = request_id
        self.hold = hold
        """The call's share of the memory budget."""
        self.verb = "unknown"
        """The name of the operation in metrics."""
        self.claims = False
        """Whether a GET hands out deliveries: pages of other sites must not be able to send it."""
        self.parameters: tuple[str, ...] = ()
        """The values of the path's parameters, in order."""
        self.credential = ANYBODY
        self.raw = b""
        """The body as received."""
        self._leaving: asyncio.Future[None] | None = None

    def admit(self, credential: Credential) -> None:
        """Make the call for the tenant of this credential; raises ``TooManyRequests``."""
        if credential.requests_per_s is not None:
            self.service.access.rates.take(credential)
        self.credential = credential
        current_tenant.set(credential.tenant)
        self.hold.belongs_to(credential.tenant)
        self.broker = self.service.broker.for_tenant(credential.tenant)

    async def read_body(self, most: int | None = None) -> bytes:
        """Read the whole body into ``raw``; ``most`` is a limit below that of the server."""
        self.raw = await self.service.bodies.read(self.receive, self.headers, self.hold, most)
        return self.raw

    @property
    def name(self) -> str:
        """The first parameter of the path: the queue, topic or id that the call is about."""
        return self.parameters[0]

    @property
    def media(self) -> str:
        """The type of the body, without parameters."""
        return _media_of(self.headers.get(b"content-type", b""))

    def check(self, action: str, name: str) -> None:
        """Raise ``Forbidden`` unless the caller's grants cover the action on the name."""
        self.credential.check(action, name)

    def check_need(self, need: Need) -> None:
        """Raise ``Forbidden`` unless the grants cover what the call's route needs."""
        if need.action is None:
            return
        if need.parameter == ANY_NAME:
            wanted = IMPLIED_BY[need.action]
            if need.or_read:
                wanted |= IMPLIED_BY[Action.READ]
            if any(grant.action in wanted for grant in self.credential.grants):
                return
        name = self.parameters[0] if need.parameter in _IN_PATH else EVERYTHING
        if need.or_read and self.credential.allows(Action.READ, name):
            return
        self.credential.check(need.action, name)

    async def check_again(self) -> None:
        """Raise if the credential was revoked or has expired since the call began."""
        self.credential = await self.door.authenticate(self)
        self.check_need(self.route.need)

    async def wait_for(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Run work that may take long; None if the server stops first.

        Raises ``Disconnected`` as soon as the caller hangs up: a claim that keeps waiting
        would lease deliveries that no one receives until the leases lapse.
        """
        tenant = self.credential.tenant
        try:
            self.service.begin_wait(tenant)
        except Busy:
            work.close()
            raise
        try:
            return await self._unless_interrupted(work)
        except Interrupted:
            return None
        finally:
            self.service.end_wait(tenant)

    async def turn_for(self, items: int) -> None:
        """Wait for the tenant's turn to read a page of so many messages, if that may take long.

        A thousand messages with many headers take tens of milliseconds, and sixty callers may ask
        for such a page at the same moment.
        """
        if items > _QUICK_PAGE:
            await self.turn()

    async def turn(self) -> None:
        """Wait for the tenant's next turn to do what takes some milliseconds."""
        await self.broker.engine.turns.take(self.credential.tenant)

    async def scan(self, work: Coroutine[Any, Any, T]) -> T:
        """Scan a log or a queue for as long as the caller stays connected.

        Raises ``Busy`` if the tenant has too many scans in progress or the server stops first,
        and ``Disconnected`` as soon as the caller hangs up. The work is cancelled then.
        """
        tenant = self.credential.tenant
        try:
            self.service.check_running()
            self.service.scans.take(tenant)
        except Busy:
            work.close()
            raise
        try:
            return await self._unless_interrupted(work)
        except Interrupted:
            raise Busy("The server is stopping.") from None
        finally:
            self.service.scans.give_back(tenant)
            self.end()

    async def _unless_interrupted(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work. Raises ``Interrupted`` if the server stops first."""
        if self._leaving is None:
            # One task for the whole call: cancelling it would lose what ``receive`` returned.
            self._leaving = asyncio.ensure_future(self._left())
        leaving, stopping = self._leaving, self.service.stopping
        try:
            with Interruption() as interruption:
                leaving.add_done_callback(interruption.cut)
                stopping.waiting.add(interruption)
                try:
                    return await work
                finally:
                    leaving.remove_done_callback(interruption.cut)
                    stopping.waiting.discard(interruption)
        except Interrupted:
            if leaving.done():
                raise Disconnected from None
            raise

    @property
    def has_left(self) -> bool:
        """Whether the caller is known to have disconnected."""
        return self._leaving is not None and self._leaving.done()

    def end(self) -> None:
        """Stop watching for a disconnect."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    async def _left(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
