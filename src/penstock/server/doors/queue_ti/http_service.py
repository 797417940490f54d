"""The HTTP routes of the service: version, login, users, grants, stats, reapers."""

from __future__ import annotations

from msgspec import Struct

from penstock.errors import BadInput
from penstock.server.call import Call
from penstock.server.doors.json_bodies import json_reply, read_typed_json, rfc3339
from penstock.server.doors.path_door import DoorRoute, checked
from penstock.server.doors.queue_ti import listing, upkeep
from penstock.server.doors.queue_ti.access import Caller, Identities, LoginRates, check_admin
from penstock.server.doors.queue_ti.accounts import (
    Accounts,
    GrantAction,
    GrantBody,
    UserBody,
    grant_body,
    user_body,
)
from penstock.server.doors.queue_ti.http_topics import DeletedReply
from penstock.server.doors.queue_ti.listing import StatusCount
from penstock.server.doors.queue_ti.reaper import Reaper, parse_schedule
from penstock.server.doors.queue_ti.refusals import QueueTiError, invalid, not_found
from penstock.server.replies import Plain
from penstock.version import VERSION

__all__ = ["ServiceRoutes"]


class VersionReply(Struct, frozen=True):
    """The version of the server."""

    version: str


class AuthStatus(Struct, frozen=True):
    """Whether calls need a token."""

    auth_required: bool


class LoginBody(Struct, frozen=True):
    """A name and a password."""

    username: str = ""
    password: str = ""


class TokenReply(Struct, frozen=True):
    """A token."""

    token: str


class CreateUserBody(Struct, frozen=True):
    """A new user."""

    username: str = ""
    password: str = ""
    is_admin: bool = False


class UpdateUserBody(Struct, frozen=True):
    """What to change."""

    username: str | None = None
    password: str | None = None
    is_admin: bool | None = None


class UserList(Struct, frozen=True):
    """All users."""

    items: list[UserBody]


class CreateGrantBody(Struct, frozen=True):
    """A new grant."""

    action: str = ""
    topic_pattern: str = "*"


class GroupGrantBody(Struct, frozen=True):
    """A new grant of a consumer group."""

    consumer_group: str = ""
    topic_pattern: str = "*"


class GrantList(Struct, frozen=True):
    """The grants of a user."""

    items: list[GrantBody]


class StatsReply(Struct, frozen=True):
    """Counts of messages."""

    topics: list[StatusCount]


class ExpiredReply(Struct, frozen=True):
    """How many messages expired."""

    expired: int


class ScheduleBody(Struct, frozen=True):
    """When expired messages are deleted; empty is never."""

    schedule: str | None = None


class ScheduleReply(Struct, frozen=True):
    """The schedule in force."""

    schedule: str
    active: bool


class ServiceRoutes:
    """The handlers."""

    def __init__(
        self, accounts: Accounts, identities: Identities, rates: LoginRates, reaper: Reaper
    ) -> None:
        self._accounts = accounts
        self._identities = identities
        self._rates = rates
        self._reaper = reaper

    def routes(self) -> tuple[DoorRoute, ...]:
        """The routes with their handlers."""
        user, admin = "/api/users/{id}", "/api/admin"
        reaper, schedule = admin + "/delete-reaper", admin + "/delete-reaper/schedule"
        table = (
            ("GET", "/api/users", "list_users", self.list_users),
            ("POST", "/api/users", "create_user", self.create_user),
            ("PUT", user, "update_user", self.update_user),
            ("DELETE", user, "delete_user", self.delete_user),
            ("GET", user + "/grants", "list_grants", self.list_grants),
            ("POST", user + "/grants", "add_grant", self.add_grant),
            ("DELETE", user + "/grants/{grant}", "delete_grant", self.delete_grant),
            ("POST", user + "/consumer-group-grants", "add_group_grant", self.add_group_grant),
            ("GET", "/api/stats", "stats", self.stats),
            ("POST", admin + "/expiry-reaper/run", "run_expiry_reaper", self.run_expiry),
            ("POST", reaper + "/run", "run_delete_reaper", self.run_delete),
            ("GET", schedule, "get_schedule", self.get_schedule),
            ("PUT", schedule, "put_schedule", self.put_schedule),
            ("POST", admin + "/archive-reaper/run", "run_archive_reaper", self.run_archive),
        )
        return (
            DoorRoute("GET", "/api/version", "version", self.version, is_open=True),
            DoorRoute("GET", "/api/auth/status", "auth_status", self.auth_status, is_open=True),
            DoorRoute("POST", "/api/auth/login", "login", self.login, is_open=True),
            DoorRoute("POST", "/api/auth/refresh", "refresh", self.refresh),
            *(
                DoorRoute(method, path, verb, checked(check_admin, handler))
                for method, path, verb, handler in table
            ),
        )

    # -- login -------------------------------------------------------------------------

    async def version(self, call: Call) -> Plain:  # noqa: ARG002
        """The version of the server."""
        return json_reply(VersionReply(VERSION))

    async def auth_status(self, call: Call) -> Plain:
        """Whether calls need a token."""
        return json_reply(AuthStatus(call.service.access.enabled))

    async def login(self, call: Call) -> Plain:
        """A token for a name and a password."""
        body = await read_typed_json(call, LoginBody)
        if not body.username or not body.password:
            raise invalid("username and password are required", "username")
        address = call.headers.get(b"x-real-ip", b"").decode("latin-1")
        peer = call.client[0] if call.client else ""
        self._rates.take(f"address {address or peer}", f"user {body.username}")
        return json_reply(TokenReply(await self._identities.login(body.username, body.password)))

    async def refresh(self, call: Call) -> Plain:
        """A new token for a valid one."""
        return json_reply(TokenReply(await self._identities.refresh(call.credential)))

    # -- users and grants --------------------------------------------------------------

    async def list_users(self, call: Call) -> Plain:
        """All users of the tenant."""
        found = await self._accounts.users(call.credential.tenant)
        return json_reply(UserList([user_body(user, rfc3339) for user in found]))

    async def create_user(self, call: Call) -> Plain:
        """Create a user."""
        body = await read_typed_json(call, CreateUserBody)
        if not body.username or not body.password:
            raise invalid("username and password are required", "username")
        user = await self._accounts.create(
            call.credential.tenant, body.username, body.password, is_admin=body.is_admin
        )
        return json_reply(user_body(user, rfc3339), 201)

    async def update_user(self, call: Call) -> Plain:
        """Change a user."""
        body = await read_typed_json(call, UpdateUserBody)
        user = await self._accounts.update(
            call.credential.tenant,
            call.name,
            username=body.username,
            password=body.password,
            is_admin=body.is_admin,
        )
        return json_reply(user_body(user, rfc3339))

    async def delete_user(self, call: Call) -> Plain:
        """Delete a user other than the caller."""
        if isinstance(call.credential, Caller) and call.credential.user_id == call.name:
            raise invalid("cannot delete yourself", "id")
        await self._accounts.delete(call.credential.tenant, call.name)
        return Plain(204)

    async def list_grants(self, call: Call) -> Plain:
        """The grants of a user."""
        user = await self._accounts.user(call.credential.tenant, call.name)
        if user is None:
            raise not_found("user not found")
        return json_reply(GrantList([grant_body(user.id, grant, rfc3339) for grant in user.grants]))

    async def add_grant(self, call: Call) -> Plain:
        """Grant a user read, write or admin."""
        body = await read_typed_json(call, CreateGrantBody)
        action: GrantAction | None = None
        match body.action:
            case "read" | "write" | "admin":
                action = body.action
            case _:
                raise invalid("action must be read, write or admin", "action")
        grant = await self._accounts.add_grant(
            call.credential.tenant, call.name, action, body.topic_pattern or "*"
        )
        return json_reply(grant_body(call.name, grant, rfc3339), 201)

    async def add_group_grant(self, call: Call) -> Plain:
        """Restrict a user to a consumer group."""
        body = await read_typed_json(call, GroupGrantBody)
        if not body.consumer_group:
            raise invalid("consumer_group is required", "consumer_group")
        grant = await self._accounts.add_grant(
            call.credential.tenant,
            call.name,
            "consume",
            body.topic_pattern or "*",
            body.consumer_group,
        )
        return json_reply(grant_body(call.name, grant, rfc3339), 201)

    async def delete_grant(self, call: Call) -> Plain:
        """Revoke a grant."""
        user_id, grant_id = call.parameters
        await self._accounts.delete_grant(call.credential.tenant, user_id, grant_id)
        return Plain(204)

    # -- stats and reapers -------------------------------------------------------------

    async def stats(self, call: Call) -> Plain:
        """Counts of messages by topic and status."""
        return json_reply(StatsReply(await call.scan(listing.counts(call.broker))))

    async def run_expiry(self, call: Call) -> Plain:
        """Expire what is past its time; it concerns every tenant."""
        call.credential.check_operator()
        return json_reply(ExpiredReply(await call.scan(upkeep.expire(call.broker))))

    async def run_delete(self, call: Call) -> Plain:
        """Delete expired messages."""
        return json_reply(DeletedReply(await call.scan(upkeep.reap_expired(call.broker))))

    async def run_archive(self, call: Call) -> Plain:
        """Delete acked messages that are too old to be replayed."""
        reaping = upkeep.reap_log(call.broker, call.service.now())
        return json_reply(DeletedReply(await call.scan(reaping)))

    async def get_schedule(self, call: Call) -> Plain:
        """When expired messages are deleted."""
        text = await self._reaper.schedule(call.credential.tenant)
        return json_reply(ScheduleReply(text, bool(text)))

    async def put_schedule(self, call: Call) -> Plain:
        """Change when expired messages are deleted."""
        body = await read_typed_json(call, ScheduleBody)
        if body.schedule is None:
            raise invalid("schedule is required", "schedule")
        text = body.schedule.strip()
        if text:
            try:
                parse_schedule(text)
            except BadInput as error:
                raise QueueTiError(422, "INVALID_ARGUMENT", error.detail) from error
        await self._reaper.put_schedule(call.credential.tenant, text)
        return json_reply(ScheduleReply(text, bool(text)))
