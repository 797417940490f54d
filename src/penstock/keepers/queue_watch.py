"""Events about the state of a queue: it has work, or too much of it.

The counts of the queue are compared with what was stored at the last event, so several servers
agree on one event: its idempotency id contains its number, and the state is replaced only if it is
still the one that was read.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.broker.webhooks import STATE_KIND
from penstock.model.delivery import QueueStats
from penstock.model.queue_events import EVENTS_TOPIC, queue_event
from penstock.model.webhooks import DEPTH, NONEMPTY, Webhook
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
    webhook: Webhook, state: WatchedState, stats: QueueStats, now: int, unclaimed_ms: int
) -> tuple[WatchedState, list[str]]:
    """The new state, and the events to send.

    ``unclaimed_ms`` is how long this server has seen no grant in the queue.
    """
    events: list[str] = []
    if NONEMPTY in webhook.events:
        nonempty = stats.available > 0
        remind = min(unclaimed_ms, now - state.nonempty_at) >= REMIND_MS
        if nonempty and (not state.nonempty or remind):
            events.append(NONEMPTY)
            state = replace(state, nonempty_at=now)
        state = replace(state, nonempty=nonempty)
    if DEPTH in webhook.events and webhook.threshold is not None:
        if not state.deep and stats.depth > webhook.threshold:
            events.append(DEPTH)
            state = replace(state, deep=True)
        elif state.deep and stats.depth <= webhook.threshold * _REARM[0] // _REARM[1]:
            state = replace(state, deep=False)
    return replace(state, number=state.number + len(events)), events


class QueueWatch:
    """Looks at the queues that webhooks watch."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: By document, the grants of its queue, and since when there were no others.
        self._grants: dict[str, tuple[int, int]] = {}

    async def look(self, tenant: str, webhook: Webhook) -> int:
        """Send the events that are due; returns how many."""
        name = f"{tenant}/{webhook.id}"
        value = await self._engine.get_document(STATE_KIND, name)
        state = WatchedState() if value is None else _decoder.decode(value)
        stats = await self._engine.stats(tenant, webhook.queue)
        now = self._engine.clock.now()
        if self._grants.get(name, (None, 0))[0] != stats.grants:
            self._grants[name] = (stats.grants, now)
        changed, events = state_events(webhook, state, stats, now, now - self._grants[name][1])
        messages = [
            replace(
                queue_event(
                    event,
                    webhook.queue,
                    webhook.id,
                    now,
                    available=stats.available,
                    depth=stats.depth,
                    **({"threshold": webhook.threshold} if event == DEPTH else {}),
                ),
                id=f"{webhook.id}/{webhook.created_at}/{state.number}/{event}",
            )
            for event in events
        ]
        if messages:
            await self._engine.publish(tenant, EVENTS_TOPIC, messages)
        if changed != state:
            await self._engine.add_document(STATE_KIND, name, _encode(changed), value)
        return len(messages)

    def forget(self, names: set[str]) -> None:
        """Keep only what is known about these documents."""
        for name in self._grants.keys() - names:
            del self._grants[name]
