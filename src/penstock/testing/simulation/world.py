"""The shared state of the clients of a simulation: the running store, and all calls and replies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec.structs import replace

from penstock.broker import Broker
from penstock.model.clock import Clock
from penstock.model.delivery import Delivery, Receipt
from penstock.testing.history import Granted, HistoryEvent, digest
from penstock.testing.simulation.declared_policies import DeclaredPolicies
from penstock.testing.simulation.promises import Promises
from penstock.testing.simulation.published_names import PublishedNames
from penstock.testing.simulation.repeated_settles import SentSettle

__all__ = ["History", "World", "granted", "judge_claim"]


class History:
    """The calls and replies of the clients of one run, in order."""

    def __init__(self) -> None:
        self.events: list[HistoryEvent] = []
        self.run = 1
        self._order = 0
        self._calls = 0

    def call(self) -> int:
        """A number for the next call."""
        self._calls += 1
        return self._calls

    def record(self, event: HistoryEvent) -> None:
        """Append one event, and number it."""
        self._order += 1
        self.events.append(replace(event, run=self.run, order=self._order))

    def next_run(self) -> None:
        """Begin a new run after the store was lost: pending calls will not get a reply."""
        self.run += 1
        self._order = 0


class World:
    """The shared state of a run's clients. The runner keeps ``broker_of`` up to date."""

    def __init__(self, broker_of: Callable[[int], Broker], clock: Clock) -> None:
        #: Client number to the broker that it is connected to.
        self.broker_of = broker_of
        self.clock = clock
        self.began_at = clock.now()
        self.history = History()
        #: Defects that clients found.
        self.violations: list[str] = []
        self.verbs: Counter[str] = Counter()
        #: Tenant, queue and receipt of every delivery that was handed out, in order.
        self.held: list[tuple[str, str, Receipt]] = []
        #: Settles with publish that can be sent again, by their keys.
        self.sent: dict[tuple[str, str, str], SentSettle] = {}
        self.promises = Promises()
        self.names = PublishedNames()
        self.declared = DeclaredPolicies()
        self.begun = 0
        #: Called with ``begun`` whenever a step begins; the runner injects faults here.
        self.on_step: Callable[[int], None] = lambda _: None
        #: Cleared while the store is down.
        self.up = asyncio.Event()
        self.up.set()
        self._calls: set[asyncio.Task[None]] = set()

    async def call(
        self, verb: Coroutine[Any, Any, None], name: str, gone_after: int | None
    ) -> None:
        """Run a verb until it ends, its caller cancels it, or the store is lost."""
        task = asyncio.get_running_loop().create_task(verb, name=name)
        self._calls.add(task)
        try:
            if gone_after is not None:
                for _ in range(gone_after):
                    if task.done():
                        break
                    await asyncio.sleep(0)
                task.cancel()
            await asyncio.wait((task,))
        finally:
            self._calls.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.violations.append(f"{name} raised {error!r}")

    def lose(self) -> None:
        """Cancel all calls in progress: the store is lost and will not reply."""
        self.up.clear()
        for task in sorted(self._calls, key=lambda task: task.get_name()):
            task.cancel()

    async def judge_replies(self, broker: Broker) -> list[str]:
        """Check what the replies promised, when all clients are done."""
        found = await self.promises.judge(broker)
        found += await self.names.judge(broker)
        return found + await self.declared.judge(broker)

    def register(self, sent: SentSettle) -> None:
        """Register a settle with publish to be sent again later."""
        if sent.key is None:
            return
        known = self.sent.setdefault(sent.key, sent)
        if known is not sent and known.reply is None:
            known.is_ambiguous = True

    def can_repeat(self, sent: SentSettle) -> bool:
        """Whether every reply to that settle belongs to it."""
        known = None if sent.key is None else self.sent.get(sent.key)
        return known is sent and not sent.is_ambiguous


def granted(call: int, consumer: str, delivery: Delivery) -> Granted:
    """The event of one granted delivery."""
    return Granted(
        call=call,
        queue=delivery.queue,
        message=delivery.message.id,
        payload=digest(delivery.payload),
        receipt=delivery.receipt,
        attempts=delivery.attempts,
        claimed_at=delivery.claimed_at,
        deadline=delivery.lease_deadline,
        consumer=consumer,
    )


def judge_claim(
    deliveries: Sequence[Delivery], queues: Sequence[str], limit: int, order: str
) -> list[str]:
    """Check what a claim returned from these queues."""
    names = [delivery.queue for delivery in deliveries]
    reply = f"a claim of {limit} from {queues} returned deliveries of {names}"
    if len(names) > limit or not set(names) <= set(queues):
        return [reply]
    if order == "given" and names != sorted(names, key=queues.index):
        return [f"{reply}, which is not the given order"]
    return []
