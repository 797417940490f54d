"""The queue-ti door: the HTTP interface below ``/api``, and the gRPC service."""

from __future__ import annotations

from typing import Final

from penstock.errors import PenstockError
from penstock.extras import importing
from penstock.server.access import Credential, check_tls
from penstock.server.call import Call
from penstock.server.doors.json_bodies import json_error
from penstock.server.doors.path_door import PathDoor
from penstock.server.doors.queue_ti.access import Identities, LoginRates
from penstock.server.doors.queue_ti.accounts import Accounts
from penstock.server.doors.queue_ti.http_messages import MessageRoutes
from penstock.server.doors.queue_ti.http_service import ServiceRoutes
from penstock.server.doors.queue_ti.http_topics import TopicRoutes
from penstock.server.doors.queue_ti.reaper import Reaper
from penstock.server.doors.queue_ti.refusals import http_status, refusal_text
from penstock.server.doors.queue_ti.topics import Limits
from penstock.server.replies import Plain
from penstock.server.service import Service
from penstock.settings import Settings
from penstock.storage.randomness import random_bytes

with importing("grpc", "google", "grpc"):
    from penstock.server.doors.queue_ti.grpc_service import GrpcServer

__all__ = ["QueueTiDoor", "open_door"]

_PREFIX: Final = "/api/"
#: How long RPCs in progress may take to end; a wait ends as soon as the server stops.
_GRACE_S: Final = 5.0


class QueueTiDoor(PathDoor):
    """Both interfaces."""

    name = "queue-ti"
    #: Routes without a body are called without a content type.
    page_proof = None

    def __init__(self, service: Service, settings: Settings) -> None:
        limits = Limits(settings.queue_ti_dlq_threshold)
        engine = service.broker.engine
        accounts = Accounts(engine, engine.clock, random_bytes)
        self.identities = Identities(
            service, accounts, random_bytes, requests_per_s=settings.requests_per_s
        )
        self.reaper = Reaper(service)
        super().__init__(
            (
                *MessageRoutes(limits).routes(),
                *TopicRoutes(limits).routes(),
                *ServiceRoutes(
                    accounts, self.identities, LoginRates(service), self.reaper
                ).routes(),
            )
        )
        self.grpc = GrpcServer(
            service,
            limits,
            self.identities,
            host=settings.host,
            port=settings.queue_ti_grpc_port,
            tls=check_tls(settings.tls_cert, settings.tls_key, settings.tls_client_ca),
        )

    def takes(self, call: Call) -> bool:
        """Everything below ``/api/``."""
        return call.path.startswith(_PREFIX)

    async def identify(self, call: Call) -> Credential:
        """The user, or the key of Penstock, that the header proves."""
        return await self.identities.identify(call.headers.get(b"authorization"))

    def refuse(self, call: Call, error: PenstockError) -> Plain:  # noqa: ARG002
        """``{"error": text}``."""
        return json_error(http_status(error), refusal_text(error), error)

    async def start(self) -> None:
        """Listen for gRPC, and run the schedules of the delete reaper."""
        await self.grpc.start()
        self.reaper.start()

    async def stop(self) -> None:
        """End both."""
        await self.reaper.stop()
        await self.grpc.stop(_GRACE_S)


def open_door(service: Service, settings: Settings) -> QueueTiDoor:
    """The door for a server."""
    return QueueTiDoor(service, settings)
