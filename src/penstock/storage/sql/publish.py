"""Publish: decide what batches mean, append them, and route them, in one commit (P1, P2, R1, S3).

Concurrent publishes of one tenant on this server share one transaction; each is still all or
nothing. Planning decides in memory, message by message and in order, so that an id or a key that
occurs twice has the same effect as in two calls (P4). A refused batch leaves nothing in the plan.
Then everything is written together (``append``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.errors import PenstockError, QueueFull, StoreBusy, TooLarge, TopicChanged
from penstock.filters.batch_routes import INLINE_EVALUATIONS
from penstock.model.bucket import Bucket
from penstock.model.checksum import checksum
from penstock.model.message import (
    NO_HEADERS,
    Message,
    MessageId,
    NewMessage,
    Offset,
    Outgoing,
    Published,
    PublishReply,
)
from penstock.model.queue import auto_created_policy
from penstock.storage.dedup_scope import stored_id
from penstock.storage.quotas import check_fan_out, check_queue_quota
from penstock.storage.sql.append import (
    Appending,
    Block,
    Entry,
    Planned,
    plain_blocks,
    publish_plain,
    published,
)
from penstock.storage.sql.batching import Call
from penstock.storage.sql.catalog import Queue, Tenant
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import ConnectionLost, NeedsTransaction, RetryTransaction
from penstock.storage.sql.deliveries import LIVE
from penstock.storage.sql.ids import Ids
from penstock.storage.sql.keys import Keys
from penstock.storage.sql.limits import Limit, hold_limit
from penstock.storage.sql.queues import ensure_queue, make_queue
from penstock.storage.sql.segments import EntryMetadata
from penstock.storage.sql.work import Work
from penstock.storage.topic_checks import CheckedBy, check_topics
from penstock.storage.turns import Slice

__all__ = ["NeedsQueue", "Publish", "Publishing", "publish"]

#: The delay that QueueFull recommends: consumers need a moment, not a minute.
_RETRY_AFTER_MS: Final = 1_000


class Publish(NamedTuple):
    """The arguments of one publish call."""

    topic: str
    messages: Sequence[NewMessage]
    batch_id: str | None
    batch_ms: int | None
    checked: CheckedBy = None


async def publish(core: Core, tenant: str, calls: Sequence[Call[Publish, PublishReply]]) -> None:
    """Serve the calls, all of them publishes of one tenant."""
    known = await core.catalog.tenant(tenant)
    if any(known.bounded_for(call.asked.topic) for call in calls):
        async with core.bounded[tenant]:
            await _publish(core, tenant, calls)
    elif not await _publish_plain(core, known, calls):
        await _publish(core, tenant, calls)


async def _publish_plain(
    core: Core, tenant: Tenant, calls: Sequence[Call[Publish, PublishReply]]
) -> bool:
    """Serve the calls with one statement, if all are plain; returns whether that was done."""
    if not core.database.publishes_in_one_statement:
        return False
    planned: list[list[Block]] = []
    for call in calls:
        asked = call.asked
        if asked.batch_id is not None:
            return False
        try:
            check_topics(asked.checked, tenant.topics)
        except TopicChanged:
            # This server's catalog may be outdated.
            return False
        plain = plain_blocks(tenant, asked.topic, asked.messages)
        if plain is None or not _fits(core, asked, plain):
            return False
        planned.append(plain)
    try:
        replies = await publish_plain(core, tenant, planned)
    except NeedsTransaction:
        return False
    for call, reply in zip(calls, replies, strict=True):
        call.answer(reply)
    return True


def _fits(core: Core, asked: Publish, plain: Sequence[Block]) -> bool:
    """Whether a publish makes no more deliveries than one may."""
    try:
        check_fan_out(core.options.limits, len(asked.messages), _deliveries(plain))
    except TooLarge:
        return False
    return True


def _deliveries(plain: Sequence[Block]) -> int:
    return sum(len(block.metadata) * len(block.targets) for block in plain)


async def _publish(core: Core, tenant: str, calls: Sequence[Call[Publish, PublishReply]]) -> None:

    async def act(work: Work) -> list[PublishReply | PenstockError]:
        publishing = Publishing(core, work, alone=False)
        return await publishing.publish_calls([call.asked for call in calls])

    try:
        replies = await core.transact(tenant, act, single_statement=True)
    except _Alone:
        for call in calls:
            await _publish_alone(core, tenant, call)
        return
    for call, reply in zip(calls, replies, strict=True):
        if isinstance(reply, PenstockError):
            call.refuse(reply)
        else:
            call.answer(reply)


async def _publish_alone(core: Core, tenant: str, call: Call[Publish, PublishReply]) -> None:
    async def act(work: Work) -> PublishReply:
        (reply,) = await Publishing(core, work, alone=True).publish_calls([call.asked])
        if isinstance(reply, PenstockError):
            raise reply
        return reply

    try:
        call.answer(await core.transact(tenant, act))
    except PenstockError as error:
        call.refuse(error)


class _Alone(Exception):
    """A publish needs its own transaction.

    It creates a queue, which must be rolled back if the publish is refused; or it replaces a
    message of the same transaction, which must be written first.
    """


class NeedsQueue(Exception):
    """A queue must be created for a topic, but not in this transaction."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic


class Publishing:
    """The publishes of one transaction."""

    def __init__(
        self,
        core: Core,
        work: Work,
        *,
        alone: bool = True,
        creates: bool = True,
        locks_depths: bool = True,
    ) -> None:
        self._core = core
        self._work = work
        self._tenant: Tenant = work.tenant
        self._now = work.now
        #: Whether there is one call, so that a refusal can roll back the transaction.
        self._alone = alone
        #: Whether this transaction may create a queue.
        self._creates = creates
        #: Whether queues with a max_depth are locked, which makes it exact across servers.
        self._locks_depths = locks_depths
        self._appending = Appending(work)
        self._created: dict[str, Queue] = {}
        self._added: Counter[int] = Counter()
        self._depths: dict[int, int] = {}
        #: Queues with a max_depth that the messages may be routed to.
        self._bounded: Sequence[Queue] = ()
        self.ids = Ids(work, core.options.token)
        self.keys = Keys(core, work, self._created)

    async def begin(self, outgoing: Sequence[Outgoing]) -> None:
        """Lock the queues with a max_depth against publishes of all servers.

        This is the first step of a transaction, in the order of queue numbers: a transaction that
        waits here holds no lock that another needs, and holds back no reader of the log. A
        caller's own transaction may stay open for long, so it does not lock.
        """
        found = {
            queue.number: queue for one in outgoing for queue in self._tenant.bounded_for(one.topic)
        }
        self._bounded = [found[number] for number in sorted(found)]
        if self._locks_depths:
            for queue in self._bounded:
                await hold_limit(self._work, queue, Limit.DEPTH, Bucket(0, 0, self._now))
        await self._work.session.publishing()

    async def publish_calls(self, asked: Sequence[Publish]) -> list[PublishReply | PenstockError]:
        """Plan each call separately, then append the accepted ones."""
        outgoing = [Outgoing(one.topic, one.messages) for one in asked]
        await self.begin(outgoing)
        await self._prepare(outgoing)
        await self.ids.read_batches([(one.topic, one.batch_id, one.batch_ms) for one in asked])
        planned: list[Sequence[Planned] | PenstockError | None] = []
        for one in asked:
            if self.ids.is_repeated(one.topic, one.batch_id):
                planned.append(None)
                continue
            try:
                check_topics(one.checked, self._tenant.topics)
                plan = await self._plan([Outgoing(one.topic, one.messages)])
            except PenstockError as error:
                planned.append(error)
                continue
            self.ids.keep_batch(one.topic, one.batch_id, one.batch_ms, plan)
            planned.append(plan)
        await self._append()
        await self.ids.write()
        replies: list[PublishReply | PenstockError] = []
        for one, plan_or_error in zip(asked, planned, strict=True):
            if isinstance(plan_or_error, PenstockError):
                replies.append(plan_or_error)
            elif plan_or_error is None:
                first = self.ids.first_reply(one.topic, one.batch_id)
                replies.append(PublishReply(first, "fsync", repeated=True))
            else:
                replies.append(PublishReply(published(plan_or_error), "fsync"))
        return replies

    async def publish_all(
        self, outgoing: Sequence[Outgoing], checked: CheckedBy
    ) -> tuple[Published, ...]:
        """Publish everything or raise. The caller must call ``begin`` first."""
        check_topics(checked, self._tenant.topics)
        await self._prepare(outgoing)
        plan = await self._plan(outgoing)
        await self._append()
        await self.ids.write()
        return published(plan)

    async def append_copies(self, copies: Sequence[tuple[str, NewMessage]]) -> None:
        """Append dead-letter copies and events to their topics. Nothing refuses them."""
        await self._work.session.publishing()
        limits, creates = self._core.options.limits, self._core.options.auto_create
        for topic, new in copies:
            ttl_ms = self._tenant.topic(topic).default_ttl_ms
            entry = self._new_entry(topic, new, None if ttl_ms is None else self._now + ttl_ms)
            # At the limit of queues none is created, because that would refuse the copy.
            may_create = len(self._tenant.queues) + len(self._created) < limits.queues
            unwanted = not entry.targets and not entry.behind
            if unwanted and new.auto_create and creates and may_create:
                await self._create(topic, entry, Counter())
            self._appending.items.append(entry)
        await self._append()

    async def _prepare(self, outgoing: Sequence[Outgoing]) -> None:
        """Read the input of planning: recorded ids, open keys, depths."""
        await self.ids.read(outgoing)
        await self.keys.read(outgoing)
        if self._bounded:
            rows = await self._work.session.fetch(
                "depths",
                queues=[queue.number for queue in self._bounded],
                kinds=[int(phase) for phase in LIVE],
            )
            self._depths = {queue: int(depth or 0) for queue, depth in rows}

    # -- planning ----------------------------------------------------------------------

    async def _plan(self, outgoing: Sequence[Outgoing]) -> list[Planned]:
        """Plan one batch. If it is refused, raises and leaves the plan unchanged."""
        ids, keys, added = self.ids.layer(), self.keys.layer(), Counter[int]()
        items: list[Block | Entry] = []
        replies: list[Planned] = []
        current = Slice(self._core.turns, self._tenant.name)
        limits, made = self._core.options.limits, 0
        messages = sum(len(one.messages) for one in outgoing)
        for one in outgoing:
            policy = self._tenant.topic(one.topic)
            plain = plain_blocks(self._tenant, one.topic, one.messages)
            if plain is not None:
                made += _deliveries(plain)
                check_fan_out(limits, messages, made)
                items += plain
                replies += plain
                continue
            evaluations = self._tenant.index.evaluations(one.topic) * len(one.messages)
            slices = evaluations > INLINE_EVALUATIONS
            for new in one.messages:
                if slices and current.is_over:
                    await current.next()
                stored = None if new.id is None else stored_id(policy, new.id, new.partition_key)
                if stored is not None:
                    seen = ids.seen(one.topic, stored, policy.dedup_window_ms)
                    if seen is not None:
                        replies.append(seen)
                        continue
                expires_at = new.expires_at
                if expires_at is None and policy.default_ttl_ms is not None:
                    expires_at = self._now + policy.default_ttl_ms
                entry = None
                if new.key is not None:
                    if keys.is_pending(one.topic, new.key):
                        await self._append_pending(items, keys.accept)
                        items = []
                    entry = keys.replace(one.topic, new, expires_at, added)
                if entry is None:
                    entry = self._new_entry(one.topic, new, expires_at)
                    for queue in entry.targets:
                        added[queue.number] += 1
                    if new.key is not None:
                        keys.opened(entry)
                unwanted = not entry.targets and not entry.behind
                if unwanted and new.auto_create and self._core.options.auto_create:
                    await self._create(one.topic, entry, added)
                made += len(entry.targets)
                check_fan_out(limits, messages, made)
                items.append(entry)
                replies.append(entry)
                if stored is not None and policy.dedup_window_ms > 0:
                    ids.keep(one.topic, stored, entry, policy.dedup_window_ms)
        self._check_depths(added)
        ids.accept()
        keys.accept()
        self._added.update(added)
        self._appending.items += items
        return replies

    async def _append_pending(
        self, items: Sequence[Block | Entry], accept: Callable[[], None]
    ) -> None:
        """Append what is planned, so that a message with a key among it can be replaced."""
        if not self._alone:
            raise _Alone
        self._appending.items += items
        accept()
        await self._append()
        await self._work.write()
        await self.keys.read_again()

    def _new_entry(self, topic: str, new: NewMessage, expires_at: int | None) -> Entry:
        payload, now = new.payload, self._now
        deliver_at = new.deliver_at
        if deliver_at is not None and deliver_at <= now:
            deliver_at = None
        headers = dict(new.headers) if new.headers else None
        total, size = checksum(payload), len(payload)
        message = Message(
            MessageId(0),
            Offset(0),
            topic,
            new.priority,
            now,
            now if deliver_at is None else deliver_at,
            expires_at,
            size,
            total,
            new.partition_key,
            new.key,
            new.content_type,
            NO_HEADERS if headers is None else headers,
            new.max_attempts,
        )
        entry_metadata = EntryMetadata(
            topic,
            new.priority,
            size,
            total,
            deliver_at,
            expires_at,
            new.partition_key,
            new.key,
            new.content_type,
            headers,
            max_attempts=new.max_attempts,
        )
        targets = self._tenant.index.match(message)
        created = self._created.get(topic)
        if created is not None:
            targets = [*targets, created]
        if self._tenant.all_take_publishes or not targets:
            return Entry(entry_metadata, payload, targets)
        return Entry(
            entry_metadata, payload, [q for q in targets if q.takes_publishes], behind=True
        )

    async def _create(self, topic: str, entry: Entry, added: Counter[int]) -> None:
        """Create a queue named after the topic, unless that name is taken."""
        if topic in self._tenant.queues:
            return
        there = len(self._tenant.queues) + len(self._created)
        check_queue_quota(self._core.options.limits, there, topic)
        if not self._creates:
            raise NeedsQueue(topic)
        if not self._alone:
            raise _Alone
        default = self._core.options.default_policy
        policy = auto_created_policy(topic, self._tenant.topic(topic), default)
        self._created[topic] = await make_queue(self._work, topic, policy, None)
        if policy.max_depth is not None:
            self._bounded = [*self._bounded, self._created[topic]]
            added[self._created[topic].number] += 1
        entry.targets = (self._created[topic],)

    def _check_depths(self, added: Counter[int]) -> None:
        for queue in self._bounded:
            new, most = added[queue.number], queue.policy.max_depth
            depth = self._depths.get(queue.number, 0) + self._added[queue.number]
            if new and most is not None and depth + new > most:
                raise QueueFull(
                    f"Queue {queue.name!r} is at its max_depth of {most}.",
                    queue=queue.name,
                    limit=most,
                    retry_after_ms=_RETRY_AFTER_MS,
                )

    async def _append(self) -> None:
        """Append the planned entries; only keys need the segment numbers first."""
        await self._appending.write(numbers_first=bool(self.keys.pending))
        await self.keys.write()


# -- publishing inside a caller's own transaction ------------------------------------
# The messages are published if and when the caller commits (P2). The catalog is read on a
# connection of the engine: the caller's transaction may see an older one. While it is open it
# blocks only publishes of the same idempotency ids or keys. Readers of the log stop before its
# entries until it ends (L2).

#: How often a publish is retried because the catalog changed meanwhile.
_TRIES: Final = 20


async def publish_within(
    core: Core, tenant: str, asked: Publish, connection: object
) -> PublishReply:
    """Publish as a part of the transaction that ``connection`` has open."""
    for _ in range(_TRIES):
        known = await core.catalog.reload(tenant)
        try:
            async with core.database.borrowed(connection) as session:
                work = Work(session, known, core.clock.now())
                publishing = Publishing(core, work, alone=True, creates=False, locks_depths=False)
                (reply,) = await publishing.publish_calls([asked])
                if isinstance(reply, PenstockError):
                    raise reply
                await work.write()
                if (await core.catalog.reload(tenant)).version != known.version:
                    raise _Changed
                ready = {queue for queue, _ in work.ready}
                await core.notify_at_commit(session, ready | {-queue for queue in work.ended})
        except NeedsQueue as need:
            await ensure_queue(core, tenant, need.topic)
        except _Changed:
            continue
        except (RetryTransaction, ConnectionLost) as error:
            raise StoreBusy(
                f"The transaction that the publish belongs to cannot continue: {error}."
            ) from error
        else:
            return PublishReply(reply.messages, "transaction", reply.repeated)
    raise StoreBusy("The catalog of the tenant keeps changing.")


class _Changed(Exception):
    """The catalog changed meanwhile."""
