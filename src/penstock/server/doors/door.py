"""What a door contributes to the application, which is the same for every door.

The application (``server.app``) checks heads and web pages, counts calls, bounds memory, waits
for slow callers and watches for disconnects. A door recognises its requests, authenticates their
callers, calls public verbs of the caller's tenant (T1), and renders results and errors as its own
protocol does. It keeps no state of deliveries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from penstock.errors import PenstockError
from penstock.server.access import Credential
from penstock.server.call import Call
from penstock.server.replies import Plain, Reply

__all__ = ["Door"]


class Door(ABC):
    """One wire protocol."""

    name: ClassVar[str]
    """What the setting ``door`` calls it."""
    page_proof: ClassVar[frozenset[bytes] | None] = frozenset()
    """Headers, in lower case, that a browser sends to another site only with that site's consent.

    Without auth, a POST with the content type of a form, or a GET that claims, needs one of them
    or a ``Penstock-`` header: otherwise a web page could have sent it (``access.browsers``). None
    if the protocol's clients send such requests themselves. Then a page is recognized only by what
    current browsers add: ``Origin`` or ``Sec-Fetch-Site``.
    """

    @abstractmethod
    def takes(self, call: Call) -> bool:
        """Whether the request is of this protocol, by its method, path, query and headers.

        Called for every request of the server before anything is checked: it must be quick, must
        not raise and must not await.
        """

    @abstractmethod
    def find(self, call: Call) -> None:
        """Set ``call.verb``, and ``call.claims``; raise the error for an unknown operation.

        ``verb`` becomes a label of metrics, so it is one of a fixed set: ``sqs.SendMessage``.
        """

    @abstractmethod
    async def authenticate(self, call: Call) -> Credential:
        """The credential of the caller; raises ``Unauthenticated``.

        Without auth it is ``ANYBODY``. The application makes the call for its tenant; ``answer``
        must check its grants for every name that the operation uses.
        """

    @abstractmethod
    async def answer(self, call: Call) -> Reply:
        """Read the body, call verbs of ``call.broker`` and encode the result."""

    @abstractmethod
    def refuse(self, call: Call, error: PenstockError) -> Plain:
        """The reply for an error, in the form that clients of the protocol expect.

        Also called if ``find`` or ``authenticate`` raised, or neither was called.
        """

    async def start(self) -> None:  # noqa: B027  (most doors need nothing)
        """Begin what the door needs besides requests, such as a port of its own.

        Called once, before the server answers requests; raises ``BadSetting``.
        """

    async def stop(self) -> None:  # noqa: B027
        """End it; called once the server answers nothing more, also if ``start`` raised."""
