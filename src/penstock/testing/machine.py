"""Random programs, run on an engine and on the oracle side by side.

``machine_for(url)`` gives a hypothesis state machine. Its rules are the verbs, its state is
two stores and one clock; every answer is compared at once, and after each step everything
that can be seen of the tenant it touched. A failing run prints the program and the blob
that repeats it.
"""

from __future__ import annotations

import asyncio
import inspect
import tempfile
from abc import abstractmethod
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec.structs import replace

from penstock.filters import Filter, parse
from penstock.model.delivery import (
    Ack,
    Extend,
    Nack,
    Receipt,
    Reject,
    Release,
    ReplaySource,
    Settlement,
)
from penstock.model.limits import Limits
from penstock.model.message import HeaderValue, NewMessage
from penstock.model.queue import Backoff, Ordering, QueuePolicy, Start, TopicPolicy
from penstock.model.states import State
from penstock.storage.contract import Engine, EngineOptions, Outgoing
from penstock.testing.clock import FakeClock
from penstock.testing.comparing import Plain, Side, Verb, attempt, difference
from penstock.testing.model import Oracle
from penstock.testing.opening import Opener, url_opener

__all__ = ["CI", "EngineAgainstOracle", "machine_for"]

T = TypeVar("T")
#: A message without times, its delay and its time to live: a call makes them absolute.
Draft: TypeAlias = tuple[NewMessage, int | None, int | None]

#: About a minute on two cores with an engine in memory. Not derandomized: every run tries
#: other programs, and a failing one prints the blob that repeats it.
CI: Final = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    derandomize=False,
    suppress_health_check=list(HealthCheck),
)

#: Log retention is left to the conformance suite: an engine may keep entries longer, and
#: then a replay from the log rightly finds more.
_NEVER_MS: Final = 10**13
#: More than any program here can need.
_MAX_SWEEPS: Final = 100_000

TENANTS = st.sampled_from(["acme", "acme", "acme", "rival"])
TOPICS = st.sampled_from(["orders", "orders", "bills"])
#: Name to the part of the policy that does not change while the queue is in use.
QUEUES: Final = {
    "all": QueuePolicy(filter="TRUE", max_attempts=2, backoff=Backoff(1000, 4000)),
    "lane": QueuePolicy(
        filter="color IS NOT NULL", ordering=Ordering.PARTITION, max_attempts=2, bucket_size=0
    ),
    "late": QueuePolicy(filter="amount >= 5", bucket_size=1, failed_retention_s=60),
    "red": QueuePolicy(filter="color = 'red'", max_attempts=1, max_depth=4, bucket_size=0),
    "wide": QueuePolicy(
        filter="topic = 'orders'", ordering=Ordering.PARTITION, partition_concurrency=2
    ),
}
#: ``orders`` and ``bills`` may have been created by a publish.
NAMES = st.sampled_from([*QUEUES, "all", "all", "lane", "orders", "bills"])
CLAIMABLE = st.one_of(NAMES, NAMES, NAMES.map(lambda name: f"{name}.dlq"))
CONSUMERS = st.sampled_from(["c1", "c2", "c3"])
CONDITIONS = st.sampled_from([None, None, "color = 'red'", "amount >= 5", "priority > 4"])
LEASES_MS = st.sampled_from([None, 1_000, 5_000, 45_000])
DELAYS_MS = st.sampled_from([None, None, 0, 500, 5_000])
STEPS_MS = st.sampled_from([1, 499, 500, 1_000, 2_000, 5_000, 29_999, 30_000, 60_000, 4_000_000])
LIMITS = st.sampled_from([1, 2, 3, 100])


@st.composite
def new_messages(draw: st.DrawFn) -> Draft:
    """A message, with its delay and its time to live: times are made absolute at the call."""
    headers: dict[str, HeaderValue] = {}
    color = draw(st.sampled_from(["red", "blue", None]))
    if color is not None:
        headers["color"] = color
    amount = draw(st.sampled_from([None, 1, 5, 9.5]))
    if amount is not None:
        headers["amount"] = amount
    new = NewMessage(
        payload=draw(st.sampled_from([b"", b"x", b"yy", b"\x00\xff"])),
        headers=headers,
        id=draw(st.sampled_from([None, None, None, "i", "j"])),
        key=draw(st.sampled_from([None, None, "k", "l"])),
        partition_key=draw(st.sampled_from([None, "a", "b", "c"])),
        priority=draw(st.sampled_from([4, 4, 4, 0, 9])),
    )
    delay_ms = draw(st.sampled_from([None, None, None, 500, 5_000]))
    ttl_ms = draw(st.sampled_from([None, None, None, 1_000, 40_000]))
    return new, delay_ms, ttl_ms


BATCHES = st.lists(new_messages(), min_size=1, max_size=4)
VERBS = st.sampled_from(["ack", "ack", "nack", "nack", "reject", "release", "extend"])
#: Which claim (counted back from the last), what to do with it, and the delay of a nack.
SETTLEMENTS = st.lists(st.tuples(st.integers(0, 30), VERBS, DELAYS_MS), min_size=1, max_size=4)
PICKS = st.integers(0, 10_000)


def _half(ceiling_ms: int) -> int:
    return ceiling_ms // 2


class EngineAgainstOracle(RuleBasedStateMachine):
    """The verbs as rules."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-machine-")
        self.clock = FakeClock()
        self._options = EngineOptions(
            clock=self.clock, jitter=_half, limits=Limits(log_retention_ms=_NEVER_MS)
        )
        self.oracle = Side(Oracle(self._options))
        self.engine = Side(self._wait(self._open()))
        self.claims: list[tuple[str, str]] = []
        """Tenant and queue of each receipt, in the order of their numbers."""

    @abstractmethod
    def opener(self) -> Opener:
        """How the engine is opened."""

    # -- running both ------------------------------------------------------------------

    def _wait(self, call: Coroutine[object, object, T]) -> T:
        return self._loop.run_until_complete(call)

    async def _open(self) -> Engine:
        opened = self.opener()(self._options, Path(self._folder.name))
        return await opened if inspect.isawaitable(opened) else opened

    def both(self, verb: Verb) -> Plain:
        """Run a verb on both sides, compare the answers, and give the oracle's."""
        expected = self._wait(attempt(verb(self.oracle)))
        found = self._wait(attempt(verb(self.engine)))
        _same(expected, found)
        return expected

    def look(self, tenant: str, *, scan: bool = True) -> None:
        """Compare everything that can be seen of a tenant."""
        self.both(lambda side: side.picture(tenant, scan=scan))

    def messages(self, batch: Sequence[Draft]) -> list[NewMessage]:
        """The batch with absolute times."""
        now = self.clock.now()
        return [
            replace(
                new,
                deliver_at=None if delay_ms is None else now + delay_ms,
                expires_at=None if ttl_ms is None else now + ttl_ms,
            )
            for new, delay_ms, ttl_ms in batch
        ]

    # -- rules -------------------------------------------------------------------------

    @initialize(names=st.sets(st.sampled_from(sorted(QUEUES)), min_size=2))
    def begin(self, names: set[str]) -> None:
        for tenant in ("acme", "rival"):
            for name in sorted(names):
                self._put(tenant, name, QUEUES[name], Start())

    def _put(self, tenant: str, name: str, policy: QueuePolicy, start: Start) -> None:
        async def put(side: Side) -> Plain:
            at = start
            if start.at == Start.OFFSET:
                offsets = side.offsets(tenant)
                at = Start(Start.OFFSET, offsets[start.value % len(offsets)] if offsets else 0)
            return side.info(await side.engine.put_queue(tenant, name, policy, at))

        self.both(put)

    @rule(tenant=TENANTS, topic=TOPICS, batch=BATCHES)
    def publish(self, tenant: str, topic: str, batch: list[Draft]) -> None:
        messages = self.messages(batch)

        async def publish(side: Side) -> Plain:
            reply = await side.engine.publish(tenant, topic, messages)
            return side.published(tenant, reply.messages)

        self.both(publish)
        self.look(tenant)

    @rule(tenant=TENANTS, queue=CLAIMABLE, consumer=CONSUMERS, limit=LIMITS, lease_ms=LEASES_MS)
    def claim(
        self, tenant: str, queue: str, consumer: str, limit: int, lease_ms: int | None
    ) -> None:
        async def claim(side: Side) -> list[Plain]:
            claimed = await side.engine.claim(tenant, queue, consumer, limit, lease_ms)
            return [side.delivery(tenant, d) for d in claimed]

        granted = self.both(claim)
        if isinstance(granted, list):
            self.claims += [(tenant, queue)] * len(granted)
        self.look(tenant)

    @rule(tenant=TENANTS, queue=NAMES, consumer=CONSUMERS)
    def claim_more(self, tenant: str, queue: str, consumer: str) -> None:
        """Claims are what most other rules need: hence twice."""
        self.claim(tenant, queue, consumer, 3, 5_000)

    @precondition(lambda self: self.claims)
    @rule(chosen=SETTLEMENTS, publish=st.one_of(st.none(), st.none(), BATCHES), topic=TOPICS)
    def settle(
        self, chosen: list[tuple[int, str, int | None]], publish: list[Draft] | None, topic: str
    ) -> None:
        """The first choice says which queue is called; the others may not belong to it."""
        total = len(self.claims)
        numbers = [total - 1 - back % total for back, _, _ in chosen]
        tenant, queue = self.claims[numbers[0]]
        outgoing = [] if publish is None else [Outgoing(topic, self.messages(publish))]

        async def settle(side: Side) -> Plain:
            settlements = [
                _settlement(verb, side.receipts[number], delay_ms)
                for number, (_, verb, delay_ms) in zip(numbers, chosen, strict=True)
            ]
            reply = await side.engine.settle(tenant, queue, settlements, outgoing)
            outcomes = [side.outcome(o) for o in reply.outcomes]
            return outcomes, side.published(tenant, reply.published)

        self.both(settle)
        self.look(tenant)

    @precondition(lambda self: self.claims)
    @rule(back=st.integers(0, 5), verb=VERBS, delay_ms=DELAYS_MS)
    def settle_one(self, back: int, verb: str, delay_ms: int | None) -> None:
        self.settle([(back, verb, delay_ms)], None, "orders")

    @rule(ms=STEPS_MS)
    def advance(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(limit=st.sampled_from([1, 5, 10_000]))
    def sweep(self, limit: int) -> None:
        async def sweep(side: Side) -> Plain:
            for _ in range(_MAX_SWEEPS):
                if not (await side.engine.sweep(limit)).more:
                    return None
            raise AssertionError("the sweep never ends")

        self.both(sweep)
        for tenant in ("acme", "rival"):
            self.look(tenant)

    @rule(
        tenant=TENANTS,
        name=st.sampled_from(sorted(QUEUES)),
        start=st.sampled_from([Start.LATEST, Start.EARLIEST, Start.OFFSET, Start.TIME]),
        back=PICKS,
        filter=st.sampled_from([None, None, "amount >= 5", "topic = 'bills'"]),
        max_attempts=st.sampled_from([1, 2, 3]),
        max_depth=st.sampled_from([None, None, 3]),
        done_retention_s=st.sampled_from([0, 10, 3600]),
        bucket_size=st.sampled_from([None, None, None, 0, 1]),
    )
    def put_queue(
        self,
        tenant: str,
        name: str,
        start: str,
        back: int,
        filter: str | None,
        max_attempts: int,
        max_depth: int | None,
        done_retention_s: int,
        bucket_size: int | None,
    ) -> None:
        fixed = QUEUES[name]
        policy = replace(
            fixed,
            filter=fixed.filter if filter is None else filter,
            max_attempts=max_attempts,
            max_depth=max_depth,
            done_retention_s=done_retention_s,
            bucket_size=fixed.bucket_size if bucket_size is None else bucket_size,
        )
        value = self.clock.now() - back if start == Start.TIME else back
        self._put(tenant, name, policy, Start(start, value))
        self.look(tenant)

    @rule(tenant=TENANTS, queue=NAMES, limit=LIMITS)
    def route(self, tenant: str, queue: str, limit: int) -> None:
        async def route(side: Side) -> Plain:
            return side.route(tenant, await side.engine.route(tenant, queue, limit))

        self.both(route)
        self.look(tenant)

    @rule(
        tenant=TENANTS,
        queue=CLAIMABLE,
        source=st.sampled_from(ReplaySource),
        where=CONDITIONS,
        limit=LIMITS,
        rate=st.sampled_from([None, None, 2]),
        dry_run=st.booleans(),
        replay_id=st.sampled_from([None, None, "r1", "r2"]),
    )
    def replay(
        self,
        tenant: str,
        queue: str,
        source: ReplaySource,
        where: str | None,
        limit: int,
        rate: int | None,
        dry_run: bool,
        replay_id: str | None,
    ) -> None:
        async def replay(side: Side) -> Plain:
            reply = await side.engine.replay(
                tenant,
                queue,
                source,
                _condition(where),
                limit,
                rate=rate,
                dry_run=dry_run,
                replay_id=replay_id,
            )
            return side.replay(tenant, reply, limit)

        self.both(replay)
        self.look(tenant)

    @rule(
        tenant=TENANTS,
        queue=CLAIMABLE,
        state=st.sampled_from(State),
        where=CONDITIONS,
        limit=LIMITS,
    )
    def purge(self, tenant: str, queue: str, state: State, where: str | None, limit: int) -> None:
        async def purge(side: Side) -> Plain:
            reply = await side.engine.purge(tenant, queue, state, _condition(where), limit)
            return reply.count

        self.both(purge)
        self.look(tenant)

    @rule(
        tenant=TENANTS,
        queue=CLAIMABLE,
        state=st.sampled_from(State),
        where=CONDITIONS,
        page=st.integers(1, 3),
    )
    def peek(self, tenant: str, queue: str, state: State, where: str | None, page: int) -> None:
        self.both(lambda side: side.browse(tenant, queue, state, _condition(where), page))

    @rule(tenant=TENANTS, queue=CLAIMABLE, number=PICKS)
    def read(self, tenant: str, queue: str, number: int) -> None:
        if not self.oracle.offsets(tenant):
            return

        async def read(side: Side) -> Plain:
            message_id = side.id(tenant, number % len(side.offsets(tenant)))
            found = await side.engine.message(tenant, message_id)
            shown = [side.snapshot(tenant, s) for s in found.deliveries]
            await side.engine.history(tenant, message_id)
            result = await side.engine.result(tenant, queue, message_id)
            return (
                side.message(tenant, found.message),
                found.payload,
                shown,
                side.result(tenant, result),
            )

        self.both(read)

    @rule(tenant=TENANTS, queue=CLAIMABLE, paused=st.sampled_from([True, False, False]))
    def pause(self, tenant: str, queue: str, paused: bool) -> None:
        self.both(lambda side: side.engine.pause(tenant, queue, paused))
        self.look(tenant)

    @rule(tenant=TENANTS, queue=NAMES, sure=st.integers(0, 2))
    def delete_queue(self, tenant: str, queue: str, sure: int) -> None:
        """Not too often: there is more to find in queues that live long."""
        if sure:
            return
        self.both(lambda side: side.engine.delete_queue(tenant, queue))
        self.look(tenant)

    @rule(tenant=TENANTS, topic=TOPICS, ttl_ms=st.sampled_from([None, 30_000]))
    def put_topic(self, tenant: str, topic: str, ttl_ms: int | None) -> None:
        policy = TopicPolicy(default_ttl_ms=ttl_ms)
        self.both(lambda side: side.engine.put_topic(tenant, topic, policy))
        self.both(lambda side: side.engine.list_topics(tenant))

    @rule(tenant=TENANTS, queue=st.sampled_from(["lane", "wide"]), consumer=CONSUMERS)
    def join(self, tenant: str, queue: str, consumer: str) -> None:
        async def join(side: Side) -> Plain:
            return side.ownership(await side.engine.join(tenant, queue, consumer))

        self.both(join)
        self.look(tenant)

    @rule(tenant=TENANTS, queue=st.sampled_from(["lane", "wide"]), consumer=CONSUMERS)
    def leave(self, tenant: str, queue: str, consumer: str) -> None:
        self.both(lambda side: side.engine.leave(tenant, queue, consumer))
        self.look(tenant)

    @precondition(lambda self: self.engine.engine.capabilities.persistent)
    @rule()
    def reopen(self) -> None:
        self._wait(self.engine.engine.close())
        self.engine.engine = self._wait(self._open())
        for tenant in ("acme", "rival"):
            self.look(tenant)

    def teardown(self) -> None:
        try:
            for tenant in ("acme", "rival"):
                self.look(tenant)
        finally:
            self._wait(self.engine.engine.close())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
            self._folder.cleanup()


def machine_for(url_or_opener: str | Opener) -> type[EngineAgainstOracle]:
    """The machine for a store URL (``{path}`` in it is replaced) or an opener."""

    opener = url_or_opener if callable(url_or_opener) else url_opener(url_or_opener)

    class Machine(EngineAgainstOracle):
        """The rules, with one engine."""

        def opener(self) -> Opener:
            return opener

    return Machine


def _same(expected: Plain, found: Plain) -> None:
    where = difference(expected, found)
    if where is not None:
        raise AssertionError(f"the engine and the oracle differ at {where}")


def _condition(text: str | None) -> Filter | None:
    return None if text is None else parse(text)


def _settlement(verb: str, receipt: str, delay_ms: int | None) -> Settlement:
    token = Receipt(receipt)
    match verb:
        case "ack":
            return Ack(token, b"result")
        case "nack":
            return Nack(token, "broken", delay_ms)
        case "reject":
            return Reject(token)
        case "release":
            return Release(token)
        case _:
            return Extend(token, 20_000)
