"""Subscriptions of codeQ's workers: URLs that are called when a queue has work.

A subscription is a document that ends unless it is renewed. The door looks at the queues of
subscribed commands once per second, as webhooks of Penstock do, and posts a notification when one
has work and had none before. Notifications are hints: none is repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.broker import Broker
from penstock.errors import Conflict, StoreCorrupt, UnknownQueue
from penstock.keepers.queue_watch import WatchedState, state_events
from penstock.model.names import escape
from penstock.model.webhooks import NONEMPTY, Webhook
from penstock.server.doors.background import Background
from penstock.server.doors.codeq.callbacks import RESULTS, Posting
from penstock.server.doors.codeq.refusals import CodeqError
from penstock.server.doors.json_bodies import rfc3339
from penstock.server.service import Service
from penstock.telemetry import RandomBytes

__all__ = ["Notifier", "Subscription", "Subscriptions"]

_KIND: Final = "codeq-subscription"
#: A look reads all subscriptions of a store.
MAX_SUBSCRIPTIONS: Final = 1_000
#: One tenant cannot use them all up.
MAX_TENANT_SUBSCRIPTIONS: Final = 250
DEFAULT_TTL_S: Final = 60
MAX_TTL_S: Final = 24 * 3600
_EVERY_S: Final = 1.0
#: A look of a hundred thousand commands takes a third of a second; then the next one is later.
_PAUSE_PER_LOOK: Final = 9
#: Documents decoded, or queues looked at, before other calls get their turn.
_ITEMS_A_STEP: Final = 20
_ID_BYTES: Final = 8
_MINUTE_MS: Final = 60_000
#: What ``state_events`` watches for.
_WATCHED: Final = Webhook(id="codeq", url="", queue=RESULTS, events=(NONEMPTY,))

_log = logging.getLogger("penstock.server")


class Subscription(Struct, frozen=True, kw_only=True):
    """The document. Fields are added, never changed: older servers read the same store."""

    id: str
    url: str
    commands: tuple[str, ...]
    mode: str
    group: str = ""
    min_interval_s: int = 0
    expires_at: int
    notified_at: int = 0


_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(Subscription)


class Subscriptions:
    """The subscriptions of one store."""

    def __init__(self, service: Service, random: RandomBytes) -> None:
        self._service = service
        self._documents = service.broker.engine
        self._random = random

    async def add(self, tenant: str, subscription: Subscription, ttl_s: int | None) -> Subscription:
        """Store a new subscription, with an id."""
        known = await self.all()
        own = sum(one == tenant for one, _ in known)
        if len(known) >= MAX_SUBSCRIPTIONS or own >= MAX_TENANT_SUBSCRIPTIONS:
            raise Conflict("There are too many subscriptions.", limit=MAX_TENANT_SUBSCRIPTIONS)
        made = replace(
            subscription,
            id=f"sub-{self._random(_ID_BYTES).hex()}",
            expires_at=self._service.now() + _ttl_ms(ttl_s),
        )
        await self._documents.put_document(_KIND, f"{tenant}/{made.id}", _encode(made))
        return made

    async def renew(self, tenant: str, id: str, ttl_s: int | None) -> Subscription:
        """Extend a subscription; 404 if it has ended."""
        name = f"{tenant}/{id}"
        value = await self._documents.get_document(_KIND, name)
        known = None if value is None else _decode(name, value)
        now = self._service.now()
        if known is None or known.expires_at <= now:
            raise CodeqError(404, "subscription not found")
        renewed = replace(known, expires_at=now + _ttl_ms(ttl_s))
        await self._documents.put_document(_KIND, name, _encode(renewed))
        return renewed

    async def all(self) -> list[tuple[str, Subscription]]:
        """Every subscription that has not ended, with its tenant; the others are removed."""
        now = self._service.now()
        found: list[tuple[str, Subscription]] = []
        for number, (name, value) in enumerate(await self._documents.list_documents(_KIND)):
            if not number % _ITEMS_A_STEP:
                await asyncio.sleep(0)
            known = _decode(name, value)
            if known.expires_at <= now:
                await self._documents.delete_document(_KIND, name, value)
            else:
                found.append((name.partition("/")[0], known))
        return found

    async def notified(self, tenant: str, known: Subscription) -> bool:
        """Note a notification; False if another server was faster or it would be too soon."""
        now = self._service.now()
        if known.notified_at and now < known.notified_at + known.min_interval_s * 1000:
            return False
        wanted, name = _encode(replace(known, notified_at=now)), f"{tenant}/{known.id}"
        there = await self._documents.add_document(_KIND, name, wanted, _encode(known))
        return there == wanted


class Notifier:
    """Notifies subscribers, while ``background`` runs."""

    def __init__(self, service: Service, subscriptions: Subscriptions, posting: Posting) -> None:
        self._service = service
        self._subscriptions = subscriptions
        self._posting = posting
        self._states: dict[tuple[str, str], WatchedState] = {}
        self._grants: dict[tuple[str, str], tuple[int, int]] = {}
        self._turns: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self.background = Background("codeq-notifier", self._run)

    async def look(self) -> int:
        """Look at every subscribed queue; returns how many notifications were sent."""
        by_command: defaultdict[tuple[str, str], list[Subscription]] = defaultdict(list)
        for number, (tenant, known) in enumerate(await self._subscriptions.all()):
            if not number % _ITEMS_A_STEP:
                await asyncio.sleep(0)
            for command in known.commands:
                by_command[tenant, command].append(known)
        for key in self._states.keys() - by_command.keys():
            del self._states[key]
        sent = 0
        for number, ((tenant, command), subscribers) in enumerate(by_command.items()):
            if not number % _ITEMS_A_STEP:
                await asyncio.sleep(0)
            if await self._has_work(self._service.broker.for_tenant(tenant), tenant, command):
                chosen = self._choose(tenant, command, subscribers)
                calls = (self._notify(tenant, command, known) for known in chosen)
                results = await asyncio.gather(*calls)
                sent += sum(results)
        return sent

    async def _has_work(self, broker: Broker, tenant: str, command: str) -> bool:
        try:
            stats = await broker.stats(escape(command))
        except UnknownQueue:
            return False
        key, now = (tenant, command), self._service.now()
        if self._grants.get(key, (None, 0))[0] != stats.grants:
            self._grants[key] = (stats.grants, now)
        state = self._states.get(key, WatchedState())
        unclaimed_ms = now - self._grants[key][1]
        self._states[key], events = state_events(_WATCHED, state, stats, now, unclaimed_ms)
        return bool(events)

    def _choose(
        self, tenant: str, command: str, subscribers: list[Subscription]
    ) -> list[Subscription]:
        """All that want every event, one of each group, and one of those that share by time."""
        chosen = [known for known in subscribers if known.mode == "fanout"]
        groups: defaultdict[str, list[Subscription]] = defaultdict(list)
        for known in subscribers:
            if known.mode == "group":
                groups[known.group].append(known)
        for group, members in groups.items():
            turn = self._turns[tenant, command, group]
            self._turns[tenant, command, group] = turn + 1
            chosen.append(members[turn % len(members)])
        hashed = [known for known in subscribers if known.mode == "hash"]
        if hashed:
            chosen.append(hashed[self._service.now() // _MINUTE_MS % len(hashed)])
        return chosen

    async def _notify(self, tenant: str, command: str, known: Subscription) -> bool:
        if not await self._subscriptions.notified(tenant, known):
            return False
        body = _encode(
            {
                "eventType": command,
                "available": True,
                "queueDepth": 0,
                "claimUrl": "/v1/codeq/tasks/claim",
                "sentAt": rfc3339(self._service.now()),
                "notificationId": f"ntf-{known.id}",
            }
        )
        failure = await self._posting.post(known.url, body)
        if failure is not None:
            _log.info("A subscriber of codeQ was not notified: %s", failure)
        return failure is None

    async def _run(self) -> float:
        begun = self._service.now()
        if not self._service.broker.engine.role.is_standby:
            await self.look()
        return max(_EVERY_S, _PAUSE_PER_LOOK * (self._service.now() - begun) / 1000)


def _ttl_ms(ttl_s: int | None) -> int:
    seconds = ttl_s if ttl_s is not None and ttl_s > 0 else DEFAULT_TTL_S
    return min(seconds, MAX_TTL_S) * 1000


def _decode(name: str, value: bytes) -> Subscription:
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreCorrupt(f"The subscription {name} cannot be read.") from error
