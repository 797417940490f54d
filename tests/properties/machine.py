"""Random programs, run on an engine and on the oracle side by side.

``machine_for(url)`` returns a hypothesis state machine. Its steps are the verbs, its state is two
stores and one clock. Every reply is compared, and after each step all observable state of the
tenant it touched, and whether a waiter would have missed a notification. A failing run prints the
program and the blob that repeats it.
"""

from __future__ import annotations

import asyncio
import inspect
import tempfile
from abc import abstractmethod
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Final, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from msgspec.structs import replace

from penstock.broker.scope import to_selection
from penstock.errors import UnknownDelivery
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
from penstock.model.message import HeaderValue, NewMessage, Offset
from penstock.model.queue import (
    DedupScope,
    IfExists,
    Ordering,
    QueuePolicy,
    RetryPosition,
    Start,
    TopicPolicy,
)
from penstock.model.queue_events import MessageEvent
from penstock.model.states import State
from penstock.storage.contract import Engine, EngineOptions, Outgoing
from penstock.storage.sql.engine import SqlEngine
from penstock.testing.clock import FakeClock
from penstock.testing.comparing import Plain, Side, Verb, attempt, difference
from penstock.testing.model import Oracle
from penstock.testing.opening import Opener, url_opener
from tests.properties.random_steps import FIRST, KINDS, POLICIES, STEPS, Draft, Step
from tests.properties.waiting_claims import Lapses, Waiters

__all__ = ["CI", "EngineAgainstOracle", "machine_for"]

T = TypeVar("T")

#: About a minute on two cores with an engine in memory. Not derandomized: every run tries other
#: programs, and a failing one prints the blob that repeats it. For longer runs: ``settings(CI,
#: max_examples=1000, stateful_step_count=80)`` takes about an hour.
CI: Final = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    derandomize=False,
    suppress_health_check=list(HealthCheck),
)

#: The conformance suite tests log retention: an engine may keep entries longer, and a replay from
#: the log then rightly finds more.
_NEVER_MS: Final = 10**13
#: More than any program here needs.
_MAX_SWEEPS: Final = 100_000


def _half(ceiling_ms: int) -> int:
    return ceiling_ms // 2


class EngineAgainstOracle(RuleBasedStateMachine):
    """One rule: run the next step of the program."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-machine-")
        self.clock = FakeClock()
        self._options = EngineOptions(
            clock=self.clock,
            jitter=_half,
            limits=Limits(log_retention_ms=_NEVER_MS),
            default_policy=QueuePolicy(max_attempts=3, labels={"team": "ops"}),
        )
        self._model = Oracle(self._options)
        self._expected = self._model.listener = Lapses()
        self._waiters = Waiters()
        self.oracle = Side(self._model)
        self.engine = Side(self._wait(self._open()))
        self.claims: list[tuple[str, str]] = []
        """Tenant and queue of each receipt, in the order of their numbers."""

    #: Whether queues may copy deliveries to a dead-letter topic and report them as events. The
    #: order of those of one sweep is not defined: it is the oracle's, unless the sweep runs in
    #: slices.
    copies = True

    @abstractmethod
    def opener(self) -> Opener:
        """The function that opens the engine."""

    # -- running both ------------------------------------------------------------------

    def _wait(self, call: Coroutine[object, object, T]) -> T:
        return self._loop.run_until_complete(call)

    async def _open(self) -> Engine:
        opened = self.opener()(self._options, Path(self._folder.name))
        engine = await opened if inspect.isawaitable(opened) else opened
        engine.listener = self._waiters
        return engine

    def both(self, verb: Verb) -> Plain:
        """Run a verb on both sides, compare the replies, and return the oracle's."""
        expected = self._wait(attempt(verb(self.oracle)))
        found = self._wait(attempt(verb(self.engine)))
        for side in (self.oracle, self.engine):
            for tenant in ("acme", "rival"):
                self._wait(side.notice_copies(tenant))
        _same(expected, found)
        return expected

    def look(self, tenant: str, *, scan: bool = True) -> None:
        """Compare all observable state of a tenant."""
        self.both(lambda side: side.picture(tenant, scan=scan))

    def messages(self, batch: Sequence[Draft]) -> list[NewMessage]:
        """The batch with absolute times."""
        return [_message(draft, self.clock.now()) for draft in batch]

    # -- the verbs ---------------------------------------------------------------------

    @initialize(batch=FIRST)
    def begin(self, batch: list[Draft]) -> None:
        for tenant in ("acme", "rival"):
            for name, policy in POLICIES.items():
                if name != "late":
                    self._put(tenant, name, policy, Start())
        self.publish("acme", "orders", batch)

    @rule(step=STEPS)
    def do(self, step: Step) -> None:
        name, arguments = step
        getattr(self, name)(**arguments)
        self._wait(self._waiters.look(self._model, self.engine.engine, self.clock.now()))
        _same(dict(self._expected.counts), dict(self._waiters.counts))

    def _put(
        self,
        tenant: str,
        name: str,
        policy: QueuePolicy,
        start: Start,
        if_exists: IfExists = IfExists.REPLACE,
    ) -> None:
        if not self.copies:
            policy = replace(policy, dead_letter_topic=None, events=())

        async def put(side: Side) -> Plain:
            at = start
            if start.at == Start.OFFSET:
                offsets = side.offsets(tenant)
                at = Start(Start.OFFSET, offsets[start.value % len(offsets)] if offsets else 0)
            return side.info(await side.engine.put_queue(tenant, name, policy, at, if_exists))

        self.both(put)

    def publish(
        self,
        tenant: str,
        topic: str,
        batch: list[Draft],
        batch_id: str | None = None,
        batch_ms: int | None = None,
    ) -> None:
        messages = self.messages(batch)

        async def publish(side: Side) -> Plain:
            reply = await side.engine.publish(
                tenant, topic, messages, batch_id=batch_id, batch_ms=batch_ms
            )
            published = side.published(tenant, reply.messages, repeated=reply.repeated)
            return published, reply.repeated

        self.both(publish)
        self.look(tenant)

    def claim(
        self,
        tenant: str,
        queue: str,
        consumer: str,
        limit: int,
        lease_ms: int | None,
        where: str | None = None,
    ) -> None:
        async def claim(side: Side) -> list[Plain]:
            claimed = await side.engine.claim(
                tenant, queue, consumer, limit, lease_ms, _condition(where)
            )
            return [side.delivery(tenant, d) for d in claimed]

        granted = self.both(claim)
        if isinstance(granted, list):
            self.claims += [(tenant, queue)] * len(granted)
        self.look(tenant)

    def settle(
        self, chosen: list[tuple[int, str, int | None]], batch: list[Draft] | None, topic: str
    ) -> None:
        """The first choice decides which queue is called; the others may belong to another."""
        if not self.claims:
            return
        total = len(self.claims)
        numbers = [total - 1 - back % total for back, _, _ in chosen]
        tenant, queue = self.claims[numbers[0]]
        outgoing = [] if batch is None else [Outgoing(topic, self.messages(batch))]

        async def settle(side: Side) -> Plain:
            settlements = [
                _settlement(verb, side.receipts[number], delay_ms)
                for number, (_, verb, delay_ms) in zip(numbers, chosen, strict=True)
            ]
            reply = await side.engine.settle(tenant, queue, settlements, outgoing)
            outcomes = [side.outcome(o) for o in reply.outcomes]
            published = side.published(tenant, reply.published, repeated=reply.repeated)
            return outcomes, published, reply.repeated

        self.both(settle)
        self.look(tenant)

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)

    def sweep(self, limit: int) -> None:
        queues = self._model._store.queues.values()
        if any(q.policy.dead_letter_topic is not None or q.policy.events for q in queues):
            limit = 10_000  # A limit is a kind of slice.

        async def sweep(side: Side) -> Plain:
            for _ in range(_MAX_SWEEPS):
                if not (await side.engine.sweep(limit)).more:
                    return None
            raise AssertionError("the sweep never ends")

        self.both(sweep)
        for tenant in ("acme", "rival"):
            self.look(tenant)

    def put_queue(
        self,
        tenant: str,
        name: str,
        start: str,
        back: int,
        filter: str | None,
        max_attempts: int,
        partition_batch: int,
        retry_position: RetryPosition,
        max_depth: int | None,
        message_ttl_ms: int | None,
        done_retention_s: int,
        dead_letters: bool,
        dead_letter_topic: str | None,
        dead_letter_expired: bool,
        events: tuple[MessageEvent, ...],
        labels: dict[str, str],
        bucket_size: int | None,
        if_exists: IfExists,
    ) -> None:
        fixed = POLICIES[name]
        ordered = fixed.ordering is Ordering.PARTITION
        policy = replace(
            fixed,
            filter=fixed.filter if filter is None else filter,
            max_attempts=max_attempts,
            partition_batch=partition_batch if fixed.partition_concurrency == 1 else 1,
            retry_position=fixed.retry_position if ordered else retry_position,
            max_depth=max_depth,
            message_ttl_ms=message_ttl_ms,
            done_retention_s=done_retention_s,
            dead_letters=dead_letters,
            dead_letter_topic=dead_letter_topic,
            dead_letter_expired=dead_letter_expired,
            events=events,
            labels=labels,
            bucket_size=fixed.bucket_size if bucket_size is None else bucket_size,
        )
        value = self.clock.now() - back if start == Start.TIME else back
        self._put(tenant, name, policy, Start(start, value), if_exists)
        self.look(tenant)

    def lower_attempts(
        self, tenant: str, queue: str, consumer: str, limit: int, max_attempts: int
    ) -> None:
        """Claim and nack with many attempts left, then lower the limit for the next claim."""
        self._limit_attempts(tenant, queue, 9)
        before = len(self.claims)
        self.claim(tenant, queue, consumer, limit, None)
        granted = len(self.claims) - before
        if granted:
            self.settle([(back, "nack", 0) for back in range(granted)], None, "orders")
        self._limit_attempts(tenant, queue, max_attempts)

    def _limit_attempts(self, tenant: str, queue: str, max_attempts: int) -> None:
        async def change(side: Side) -> Plain:
            info = await side.engine.get_queue(tenant, queue)
            policy = replace(info.policy, max_attempts=max_attempts)
            return side.info(await side.engine.put_queue(tenant, queue, policy, Start()))

        self.both(change)
        self.look(tenant)

    def route(self, tenant: str, queue: str, limit: int) -> None:
        async def route(side: Side) -> Plain:
            return side.route(tenant, await side.engine.route(tenant, queue, limit))

        self.both(route)
        self.look(tenant)

    def assign(
        self, tenant: str, queue: str, skipped: int, count: int, named: str, wrong: str | None
    ) -> None:
        """Act as an external router: read a range of the log and name the entries that match."""

        async def assign(side: Side) -> Plain:
            # Prefer a queue that is behind: only there does an assignment do something.
            behind = [name for owner, name in await side.engine.behind() if owner == tenant]
            chosen = queue if queue in behind or not behind else behind[0]
            info = await side.engine.get_queue(tenant, chosen)
            total = len(side.offsets(tenant))
            at = total if info.cursor is None else side.below(tenant, info.cursor)
            first = min(max(0, at + skipped), total)
            last = total if wrong == "end" else min(first + count, total)
            start, end = side.after(tenant, first), side.after(tenant, last)
            page = await side.engine.read_log(tenant, start, last - first)
            takes = parse(info.policy.filter).matches
            messages = [entry.message for entry in page.entries]
            offsets = [
                m.offset for m in messages if named == "all" or m.key is not None or takes(m)
            ]
            reply = await side.engine.assign(
                tenant,
                chosen,
                filter="priority = 4" if wrong == "filter" else info.policy.filter,
                start=start,
                end=Offset(end + 1) if wrong == "end" else end,
                offsets=offsets,
            )
            return side.route(tenant, reply)

        self.both(assign)
        self.look(tenant)

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
        ttl_ms: int | None,
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
                ttl_ms=ttl_ms,
            )
            return side.replay(tenant, reply, limit)

        self.both(replay)
        self.look(tenant)

    def purge(
        self,
        tenant: str,
        queue: str,
        state: State,
        where: str | None,
        limit: int,
        numbers: list[int] | None,
    ) -> None:
        """Purge a state, or only the messages with these numbers."""

        async def purge(side: Side) -> Plain:
            ids: list[int] | None = None
            if numbers is not None:
                total = len(side.offsets(tenant))
                ids = [side.id(tenant, number % total) for number in numbers if total]
            selection = to_selection(where, ids)
            return (await side.engine.purge(tenant, queue, state, selection, limit)).count

        self.both(purge)
        self.look(tenant)

    def cancel(self, tenant: str, queue: str | None, number: int) -> None:
        if not self.oracle.offsets(tenant):
            return

        async def cancel(side: Side) -> Plain:
            message_id = side.id(tenant, number % len(side.offsets(tenant)))
            reply = await side.engine.cancel(tenant, message_id, queue)
            return (reply.count, reply.queues, reply.pending)

        self.both(cancel)
        self.look(tenant)

    def find(self, tenant: str, topic: str, id: str, partition_key: str | None) -> None:
        async def find(side: Side) -> Plain:
            found = await side.engine.find(tenant, topic, id, partition_key)
            return None if found is None else side.message(tenant, found)

        self.both(find)

    def peek(self, tenant: str, queue: str, state: State, where: str | None, page: int) -> None:
        self.both(lambda side: side.browse(tenant, queue, state, _condition(where), page))

    def read(self, tenant: str, queue: str, number: int) -> None:
        if not self.oracle.offsets(tenant):
            return

        async def read(side: Side) -> Plain:
            message_id = side.id(tenant, number % len(side.offsets(tenant)))
            found = await side.engine.message(tenant, message_id)
            shown = [side.snapshot(tenant, s) for s in found.deliveries]
            events = await side.engine.history(tenant, message_id)
            try:
                result = side.result(tenant, await side.engine.result(tenant, queue, message_id))
            except UnknownDelivery:
                result = "unknown"
            return (
                side.message(tenant, found.message),
                side.payload(tenant, found.message, found.payload),
                shown,
                events,
                result,
            )

        self.both(read)

    def pause(self, tenant: str, queue: str, paused: bool) -> None:
        self.both(lambda side: side.engine.pause(tenant, queue, paused))
        self.look(tenant)

    def delete_queue(self, tenant: str, queue: str) -> None:
        self.both(lambda side: side.engine.delete_queue(tenant, queue))
        self.look(tenant)

    def put_topic(
        self,
        tenant: str,
        topic: str,
        ttl_ms: int | None,
        dedup_scope: DedupScope,
        queue_defaults: dict[str, object],
    ) -> None:
        policy = TopicPolicy(
            default_ttl_ms=ttl_ms, dedup_scope=dedup_scope, queue_defaults=queue_defaults
        )
        self.both(lambda side: side.engine.put_topic(tenant, topic, policy))
        self.both(lambda side: side.engine.list_topics(tenant))

    def join(self, tenant: str, queue: str, consumer: str) -> None:
        async def join(side: Side) -> Plain:
            return side.ownership(await side.engine.join(tenant, queue, consumer))

        self.both(join)
        self.look(tenant)

    def leave(self, tenant: str, queue: str, consumer: str) -> None:
        self.both(lambda side: side.engine.leave(tenant, queue, consumer))
        self.look(tenant)

    def document(self, kind: str, name: str, value: bytes | None) -> None:
        """Put the document, or delete it if there is no value."""
        if value is None:
            self.both(lambda side: side.engine.delete_document(kind, name))
        else:
            self.both(lambda side: side.engine.put_document(kind, name, value))
        self.both(lambda side: side.documents(KINDS))

    def reopen(self) -> None:
        if not self.engine.engine.capabilities.persistent:
            return
        self._wait(self.engine.engine.close())
        self._waiters.wake_all()
        self.engine.engine = self._wait(self._open())
        self.both(lambda side: side.documents(KINDS))
        for tenant in ("acme", "rival"):
            self.look(tenant)

    def lapse_number(self) -> None:
        """A server of a database loses its number: the next claim is rolled back and retried.

        That happens after 40 seconds of real time, so only to a slow program.
        """
        engine = self.engine.engine
        if isinstance(engine, SqlEngine):
            engine._core.leases.lapse()

    def teardown(self) -> None:
        try:
            for tenant in ("acme", "rival"):
                self.look(tenant)
        finally:
            self._wait(self.engine.engine.close())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
            self._folder.cleanup()


def machine_for(
    url_or_opener: str | Opener, *, with_copies: bool = True
) -> type[EngineAgainstOracle]:
    """The machine for a store URL (``{path}`` in it is replaced) or an opener."""

    opener = url_or_opener if callable(url_or_opener) else url_opener(url_or_opener)

    class Machine(EngineAgainstOracle):
        """The rules, with one engine."""

        copies = with_copies

        def opener(self) -> Opener:
            return opener

    return Machine


def _same(expected: Plain, found: Plain) -> None:
    where = difference(expected, found)
    if where is not None:
        raise AssertionError(f"the engine and the oracle differ at {where}")


def _message(draft: Draft, now: int) -> NewMessage:
    headers: dict[str, HeaderValue] = {
        name: draft[name] for name in ("color", "amount") if name in draft
    }
    return NewMessage(
        payload=draft.get("payload", b""),
        headers=headers,
        id=draft.get("id"),
        key=draft.get("key"),
        partition_key=draft.get("partition_key"),
        priority=draft.get("priority", 4),
        deliver_at=now + draft["delay_ms"] if "delay_ms" in draft else None,
        expires_at=now + draft["ttl_ms"] if "ttl_ms" in draft else None,
        auto_create=draft.get("auto_create", True),
        max_attempts=draft.get("max_attempts"),
    )


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
            return Release(token, delay_ms)
        case _:
            return Extend(token, None if delay_ms == 0 else 20_000)
