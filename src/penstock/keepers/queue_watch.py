"""Events about the state of a queue: it has work, or too much of it.

The counts of the queue are compared with what was stored at the last event, so several servers
agree on one event: its idempotency id contains its number, and the state is replaced only if it is
still the one that was read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.broker.webhooks import STATE_KIND
from penstock.model.counts import QueueCounts
from penstock.model.delivery import QueueStats
from penstock.model.queue_events import EVENTS_TOPIC, queue_event
from penstock.model.webhooks import DEPTH, NONEMPTY, Webhook, is_one_queue
from penstock.storage.contract import Engine

__all__ = ["REMIND_MS", "QueueWatch", "WatchedState", "state_events"]

#: ``queue.nonempty`` is repeated after so long without a claim: a consumer that emptied the queue
#: between two looks may have stopped without having seen the newest deliveries.
REMIND_MS: Final = 60_000
#: ``queue.depth`` fires again only after the depth was at or below this share of the threshold.
_REARM: Final = (4, 5)

_encode: Final = msgspec.json.Encoder().encode


class WatchedState(Struct, frozen=True, kw_only=True):
    """What was last reported about a queue. A document: fields are added, never changed."""

    number: int = 0
    """How many events were sent."""
    nonempty: bool = False
    nonempty_at: int = 0
    """When ``queue.nonempty`` was last sent."""
    deep: bool = False


_decoder: Final = msgspec.json.Decoder(WatchedState)


def state_events(
    webhook: Webhook,
    state: WatchedState,
    counts: QueueCounts | QueueStats,
    now: int,
    unclaimed_ms: int,
) -> tuple[WatchedState, list[str]]:
    """The new state, and the events to send.

    ``unclaimed_ms`` is how long this server has seen no grant in the queue.
    """
    events: list[str] = []
    if NONEMPTY in webhook.events:
        nonempty = counts.available > 0
        remind = min(unclaimed_ms, now - state.nonempty_at) >= REMIND_MS
        if nonempty and (not state.nonempty or remind):
            events.append(NONEMPTY)
            state = replace(state, nonempty_at=now)
        state = replace(state, nonempty=nonempty)
    if DEPTH in webhook.events and webhook.threshold is not None:
        if not state.deep and counts.depth > webhook.threshold:
            events.append(DEPTH)
            state = replace(state, deep=True)
        elif state.deep and counts.depth <= webhook.threshold * _REARM[0] // _REARM[1]:
            state = replace(state, deep=False)
    return replace(state, number=state.number + len(events)), events


class QueueWatch:
    """Looks at the queues that webhooks watch."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: By document, the grants of its queue, and since when there were no others.
        self._grants: dict[str, tuple[int, int]] = {}
        #: The states that were last stored, by document; None until they are read.
        self._states: dict[str, bytes] | None = None

    def begin_pass(self) -> None:
        """Read the stored states again: other servers look at the same queues."""
        self._states = None

    async def look(self, tenant: str, webhook: Webhook, queues: Sequence[str]) -> int:
        """Send the events that are due about these queues; returns how many."""
        sent = 0
        found = await self._engine.counts(tenant, queues)
        for queue, counts in zip(queues, found, strict=True):
            if counts is not None:
                sent += await self._report(tenant, webhook, queue, counts)
        return sent

    async def _report(self, tenant: str, webhook: Webhook, queue: str, counts: QueueCounts) -> int:
        name = _state_name(tenant, webhook, queue)
        value = (await self._stored()).get(name)
        state = WatchedState() if value is None else _decoder.decode(value)
        now = self._engine.clock.now()
        if self._grants.get(name, (None, 0))[0] != counts.grants:
            self._grants[name] = (counts.grants, now)
        changed, events = state_events(webhook, state, counts, now, now - self._grants[name][1])
        of_pattern = () if is_one_queue(webhook) else (queue,)
        messages = [
            replace(
                queue_event(
                    event,
                    queue,
                    webhook.id,
                    now,
                    available=counts.available,
                    depth=counts.depth,
                    **({"threshold": webhook.threshold} if event == DEPTH else {}),
                ),
                id="/".join(
                    (webhook.id, str(webhook.created_at), *of_pattern, str(state.number), event)
                ),
            )
            for event in events
        ]
        if messages:
            await self._engine.publish(tenant, EVENTS_TOPIC, messages)
        if changed != state:
            await self._engine.add_document(STATE_KIND, name, _encode(changed), value)
        return len(messages)

    async def forget_queues(self, tenant: str, webhook: Webhook, queues: Collection[str]) -> None:
        """Keep the states of these queues only, of those that match the webhook's pattern."""
        kept = {_state_name(tenant, webhook, queue) for queue in queues}
        prefix = _state_name(tenant, webhook, "")
        for name in [name for name in await self._stored() if name.startswith(prefix)]:
            if name not in kept:
                await self._engine.delete_document(STATE_KIND, name)
                self._grants.pop(name, None)

    def forget(self, names: Collection[str]) -> None:
        """Keep only what is known about the queues of these webhooks."""
        for name in list(self._grants):
            if "/".join(name.split("/")[:2]) not in names:
                del self._grants[name]

    async def _stored(self) -> dict[str, bytes]:
        if self._states is None:
            self._states = dict(await self._engine.list_documents(STATE_KIND))
        return self._states


def _state_name(tenant: str, webhook: Webhook, queue: str) -> str:
    """The document of what was last seen of a queue."""
    name = f"{tenant}/{webhook.id}"
    return name if is_one_queue(webhook) else f"{name}/{queue}"
