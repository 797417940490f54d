"""The codeQ door: the task API below ``/v1/codeq``."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from penstock.errors import PenstockError, QueueFull, TooManyRequests
from penstock.server.access import Credential
from penstock.server.call import Call
from penstock.server.doors.codeq.access import Identities
from penstock.server.doors.codeq.callbacks import Callbacks, Posting
from penstock.server.doors.codeq.http_admin import ROUTES as ADMIN
from penstock.server.doors.codeq.http_tasks import PREFIX, TaskRoutes
from penstock.server.doors.codeq.refusals import FieldError, http_status, refusal_text
from penstock.server.doors.codeq.subscriptions import Notifier, Subscriptions
from penstock.server.doors.json_bodies import json_error, json_reply
from penstock.server.doors.path_door import PathDoor
from penstock.server.replies import Plain
from penstock.server.service import Service
from penstock.settings import Settings
from penstock.storage.randomness import random_bytes
from penstock.wire.problems import retry_after_s

__all__ = ["CodeqDoor", "open_door"]

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=-]{1,64}")
#: Whose limit a route counts against, in the body of 429.
_LIMITED: Final = {
    "create_task": ("producer", "create_task"),
    "create_tasks": ("producer", "create_task"),
    "claim": ("worker", "claim"),
    "claim_batch": ("worker", "claim"),
    "cleanup": ("admin", "cleanup"),
}


class LimitBody(Struct, frozen=True):
    """The body of 429."""

    error: str
    scope: str
    operation: str
    retryAfterSeconds: int  # noqa: N815  (codeQ's name)


class FieldBody(Struct, frozen=True):
    """The body of 422."""

    error: str
    field: str


class CodeqDoor(PathDoor):
    """The twenty routes."""

    name = "codeq"
    #: Routes without a body are called without a content type.
    page_proof = None

    def __init__(self, service: Service, settings: Settings) -> None:
        secret = settings.codeq_webhook_secret
        self.subscriptions = Subscriptions(service, random_bytes)
        posting = Posting(service, secret)
        self.callbacks = Callbacks(service, posting)
        self.notifier = Notifier(service, self.subscriptions, posting)
        self._identities = Identities(
            service,
            worker=settings.codeq_worker_audience,
            producer=settings.jwt_audience,
            requests_per_s=settings.requests_per_s,
        )
        super().__init__((*TaskRoutes(self.subscriptions).routes(), *ADMIN))

    def takes(self, call: Call) -> bool:
        """Everything below ``/v1/codeq/``."""
        return call.path.startswith(PREFIX + "/")

    async def identify(self, call: Call) -> Credential:
        """The holder of a token of codeQ, or of a credential of Penstock."""
        return await self._identities.identify(call.headers.get(b"authorization"))

    async def answer(self, call: Call) -> Plain:
        """The reply of the route, with the request's id."""
        reply = await super().answer(call)
        assert isinstance(reply, Plain)
        return _with_id(call, reply)

    def refuse(self, call: Call, error: PenstockError) -> Plain:
        """``{"error": text}``, with what else codeQ says for 422 and 429."""
        text, status = refusal_text(error), http_status(error)
        if isinstance(error, FieldError) and error.field is not None:
            return _with_id(call, json_reply(FieldBody(text, error.field), status))
        limited = _LIMITED.get(call.verb.partition(".")[2])
        if isinstance(error, TooManyRequests | QueueFull) and limited is not None:
            seconds = retry_after_s(error) or 1
            body = LimitBody(text, *limited, seconds)
            headers = ((b"retry-after", b"%d" % seconds),)
            return _with_id(call, json_reply(body, status, headers))
        return _with_id(call, json_error(status, text, error))

    async def start(self) -> None:
        """Begin to post results and notifications."""
        self.callbacks.background.start()
        self.notifier.background.start()

    async def stop(self) -> None:
        """End both."""
        await self.notifier.background.stop()
        await self.callbacks.background.stop()


def _with_id(call: Call, reply: Plain) -> Plain:
    given = call.headers.get(b"x-request-id", b"")
    known = given if _REQUEST_ID.fullmatch(given) else call.request_id.encode()
    headers = (*reply.headers, (b"x-request-id", known))
    return Plain(reply.status, reply.body, reply.content_type, headers)


def open_door(service: Service, settings: Settings) -> CodeqDoor:
    """The door for a server."""
    return CodeqDoor(service, settings)
