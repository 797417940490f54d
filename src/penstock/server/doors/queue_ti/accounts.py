"""Users of queue-ti and their grants: documents of the store, one per user.

A user belongs to a tenant, and its name is unique there (T1): a second document, named after the
user's name, refers to the user. Passwords are stored as scrypt hashes (``passwords``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final, Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import BadInput, Conflict, StoreCorrupt
from penstock.model.clock import Clock
from penstock.server.doors.queue_ti.passwords import Passwords
from penstock.server.doors.queue_ti.refusals import invalid, not_found
from penstock.storage.document_verbs import Documents
from penstock.telemetry import RandomBytes

__all__ = ["Accounts", "GrantBody", "User", "UserBody", "UserGrant", "grant_body", "user_body"]

USER_KIND: Final = "queue-ti-user"
_NAME_KIND: Final = "queue-ti-username"
_MAX_NAME: Final = 200
#: Listings and logins read all users of a tenant, and every check all grants of a user.
MAX_USERS: Final = 1_000
MAX_GRANTS: Final = 100
_MAX_PATTERN: Final = 200
_TRIES: Final = 20

GrantAction: TypeAlias = Literal["read", "write", "admin", "consume"]


class UserGrant(Struct, frozen=True, kw_only=True):
    """What a user may do with topics."""

    id: str
    action: GrantAction
    topic_pattern: str
    consumer_group: str | None = None
    created_at: int

    def matches(self, topic: str) -> bool:
        """Whether the pattern covers a topic: ``*``, ``p.*``, or the topic itself."""
        pattern = self.topic_pattern
        if pattern == "*":
            return True
        if pattern.endswith(".*"):
            return topic.startswith(pattern[:-1])
        return topic == pattern


class User(Struct, frozen=True, kw_only=True):
    """The document. Fields are added, never changed: older servers read the same store."""

    id: str
    username: str
    is_admin: bool
    salt: bytes
    hash: bytes
    created_at: int
    updated_at: int
    grants: tuple[UserGrant, ...] = ()


class UserBody(Struct, frozen=True):
    """A user without its password."""

    id: str
    username: str
    is_admin: bool
    created_at: str
    updated_at: str


class GrantBody(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A grant as the HTTP interface shows it."""

    id: str
    user_id: str
    action: str
    topic_pattern: str
    consumer_group: str | None = None
    created_at: str


_Change: TypeAlias = Callable[[User], User]
_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(User)


class Accounts:
    """The users of one store."""

    def __init__(self, documents: Documents, clock: Clock, random: RandomBytes) -> None:
        self._documents = documents
        self._clock = clock
        self._random = random
        self._passwords = Passwords(random)

    def new_id(self) -> str:
        """A random UUID."""
        return str(UUID(bytes=self._random(16), version=4))

    async def users(self, tenant: str) -> list[User]:
        """The users of a tenant, oldest first."""
        prefix = f"{tenant}/"
        found = [
            _decode(name, value)
            for name, value in await self._documents.list_documents(USER_KIND)
            if name.startswith(prefix)
        ]
        return sorted(found, key=lambda user: (user.created_at, user.username))

    async def user(self, tenant: str, id: str) -> User | None:
        """The user, or None."""
        name = f"{tenant}/{id}"
        value = await self._documents.get_document(USER_KIND, name)
        return None if value is None else _decode(name, value)

    async def create(self, tenant: str, username: str, password: str, *, is_admin: bool) -> User:
        """Create a user; ``Conflict`` if the name is taken."""
        _check_name(username)
        salt, hashed = await self._passwords.hashed(password)
        if len(await self.users(tenant)) >= MAX_USERS:
            raise Conflict(f"There are {MAX_USERS} users; delete some.", limit=MAX_USERS)
        now = self._clock.now()
        user = User(
            id=self.new_id(),
            username=username,
            is_admin=is_admin,
            salt=salt,
            hash=hashed,
            created_at=now,
            updated_at=now,
        )
        await self._take_name(tenant, username, user.id)
        await self._documents.put_document(USER_KIND, f"{tenant}/{user.id}", _encode(user))
        return user

    async def update(
        self,
        tenant: str,
        id: str,
        *,
        username: str | None = None,
        password: str | None = None,
        is_admin: bool | None = None,
    ) -> User:
        """Change what is given."""
        if username is not None:
            _check_name(username)
        secret = None if password is None else await self._passwords.hashed(password)
        before = await self._existing(tenant, id)
        if username is not None and username != before.username:
            await self._take_name(tenant, username, id)

        def change(user: User) -> User:
            salt, hashed = secret or (user.salt, user.hash)
            return replace(
                user,
                username=user.username if username is None else username,
                is_admin=user.is_admin if is_admin is None else is_admin,
                salt=salt,
                hash=hashed,
                updated_at=self._clock.now(),
            )

        after = await self._change(tenant, id, change)
        if after.username != before.username:
            await self._free_name(tenant, before.username, id)
        return after

    async def delete(self, tenant: str, id: str) -> None:
        """Remove a user; its tokens are refused from now on."""
        user = await self._existing(tenant, id)
        await self._documents.delete_document(USER_KIND, f"{tenant}/{id}")
        await self._free_name(tenant, user.username, id)

    async def login(self, tenant: str, username: str, password: str) -> User | None:
        """The user with this name and password; None takes as long."""
        found = None
        owner = await self._documents.get_document(_NAME_KIND, _name_document(tenant, username))
        if owner is not None:
            found = await self.user(tenant, owner.decode())
        salt, hashed = (b"", b"") if found is None else (found.salt, found.hash)
        if not await self._passwords.matches(password, salt, hashed) or found is None:
            return None
        return found if found.username == username else None

    async def add_grant(
        self, tenant: str, id: str, action: GrantAction, pattern: str, group: str | None = None
    ) -> UserGrant:
        """Grant a user something; ``Conflict`` for the same grant of a consumer group."""
        _check_pattern(pattern)
        grant = UserGrant(
            id=self.new_id(),
            action=action,
            topic_pattern=pattern,
            consumer_group=group,
            created_at=self._clock.now(),
        )

        def change(user: User) -> User:
            if len(user.grants) >= MAX_GRANTS:
                raise Conflict(f"The user has {MAX_GRANTS} grants.", limit=MAX_GRANTS)
            same = (group, pattern)
            if group is not None and any(
                (known.consumer_group, known.topic_pattern) == same for known in user.grants
            ):
                raise Conflict("consumer group grant already exists", field="consumer_group")
            return replace(user, grants=(*user.grants, grant))

        await self._change(tenant, id, change)
        return grant

    async def delete_grant(self, tenant: str, id: str, grant_id: str) -> None:
        """Revoke a grant."""

        def change(user: User) -> User:
            kept = tuple(grant for grant in user.grants if grant.id != grant_id)
            if len(kept) == len(user.grants):
                raise not_found("grant not found")
            return replace(user, grants=kept)

        await self._change(tenant, id, change)

    async def _existing(self, tenant: str, id: str) -> User:
        user = await self.user(tenant, id)
        if user is None:
            raise not_found("user not found")
        return user

    async def _change(self, tenant: str, id: str, change: _Change) -> User:
        """Replace a user's document, again if another call changes it meanwhile."""
        name = f"{tenant}/{id}"
        for _ in range(_TRIES):
            value = await self._documents.get_document(USER_KIND, name)
            if value is None:
                raise not_found("user not found")
            changed = change(_decode(name, value))
            wanted = _encode(changed)
            if await self._documents.add_document(USER_KIND, name, wanted, value) == wanted:
                return changed
        raise Conflict("The user keeps changing.", field="id")

    async def _take_name(self, tenant: str, username: str, id: str) -> None:
        name, wanted = _name_document(tenant, username), id.encode()
        there = await self._documents.add_document(_NAME_KIND, name, wanted)
        if there == wanted:
            return
        # A user whose name was changed, or whose creation was cut short, has left it behind.
        owner = await self.user(tenant, there.decode())
        if owner is not None and owner.username == username:
            raise Conflict("username already exists", field="username")
        if await self._documents.add_document(_NAME_KIND, name, wanted, there) != wanted:
            raise Conflict("username already exists", field="username")

    async def _free_name(self, tenant: str, username: str, id: str) -> None:
        name = _name_document(tenant, username)
        await self._documents.delete_document(_NAME_KIND, name, id.encode())


def user_body(user: User, time: Callable[[int], str]) -> UserBody:
    """The user without its password."""
    return UserBody(
        user.id, user.username, user.is_admin, time(user.created_at), time(user.updated_at)
    )


def grant_body(user_id: str, grant: UserGrant, time: Callable[[int], str]) -> GrantBody:
    """The grant with the id of its user."""
    return GrantBody(
        id=grant.id,
        user_id=user_id,
        action=grant.action,
        topic_pattern=grant.topic_pattern,
        consumer_group=grant.consumer_group,
        created_at=time(grant.created_at),
    )


def _name_document(tenant: str, username: str) -> str:
    # Names of users may hold any character, those of documents are bounded.
    return f"{tenant}/{hashlib.sha256(username.encode(errors='surrogatepass')).hexdigest()}"


def _decode(name: str, value: bytes) -> User:
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreCorrupt(f"The user {name} cannot be read.") from error


def _check_name(username: str) -> None:
    if not username or len(username) > _MAX_NAME or not username.isprintable():
        raise invalid("username is required", "username")
    if "/" in username:
        raise BadInput("username must have no slash: it would name a tenant.", field="username")


def _check_pattern(pattern: str) -> None:
    if not pattern or len(pattern) > _MAX_PATTERN or not pattern.isprintable():
        raise invalid("topic_pattern is not valid", "topic_pattern")
