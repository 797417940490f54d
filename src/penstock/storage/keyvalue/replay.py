"""Replay and purge: bulk verbs that run in slices so that other verbs get their turn.

A slice selects and moves without waiting in between, so every move is atomic (S3). State may change
between slices, so each slice selects afresh. The engine checks between slices that the queue still
exists.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from penstock.errors import Conflict
from penstock.filters import Selection
from penstock.model.decisions import is_expired, replay_due_at, replay_expires_at
from penstock.model.delivery import ReplayReply, ReplaySource, Snapshot
from penstock.model.message import Message
from penstock.model.states import LIVE, State
from penstock.storage.keyvalue.browse import in_publish_order, in_slice, snapshots, snapshots_of
from penstock.storage.keyvalue.keys import claim_id_of
from penstock.storage.keyvalue.log import Log
from penstock.storage.keyvalue.metadata import encode_metadata, entering
from penstock.storage.keyvalue.moves import (
    drop_available,
    drop_delayed,
    drop_done,
    drop_expired,
    remember_ack,
    revive,
)
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.route import join_open_key
from penstock.storage.keyvalue.settled import SettledShelf

__all__ = ["Purge", "Replay"]

#: The most deliveries in the sample of a reply.
_SAMPLE = 10


class Replay:
    """One replay, slice by slice."""

    def __init__(
        self,
        queue: Queue,
        log: Log,
        source: ReplaySource,
        where: Selection | None,
        limit: int,
        *,
        began: int,
        rate: int | None,
        dry_run: bool,
        replay_id: str | None,
        ttl_ms: int | None,
        slice_size: int,
    ) -> None:
        if queue.is_dead_letter:
            if source is ReplaySource.LOG:
                raise Conflict("A dead-letter queue is not filled from the log.", field="source")
            if source is ReplaySource.FAILED:
                queue = queue.home
        if ttl_ms is not None and queue.is_dead_letter:
            raise Conflict("Dead letters do not expire.", field="ttl_ms")
        self._ttl_ms = ttl_ms
        self.queue = queue
        self._log = log
        self._source = source
        self._where = where
        self._left = limit
        self._began = began
        self._rate = rate
        self._dry_run = dry_run
        self._replay_id = replay_id
        self._slice_size = slice_size
        self._position = -1
        self._count = 0
        self._skipped = 0
        self._sample: list[Snapshot] = []

    @property
    def reply(self) -> ReplayReply:
        return ReplayReply(self._count, tuple(self._sample), self._skipped)

    def run_slice(self, now: int) -> bool:
        """Process the next deliveries. Returns whether there are more."""
        if self._left <= 0:
            return False
        looked, more = in_slice(self._candidates(self._position), self._slice_size)
        for position, snapshot in looked:
            self._position = position
            if snapshot is None:
                continue
            snapshot = self._as_logged(snapshot)  # noqa: PLW2901
            if not self._selects(snapshot, now):
                continue
            deliver_at = snapshot.message.deliver_at
            due_at = max(now, replay_due_at(deliver_at, self._began, self._count, self._rate))
            snapshot = self._as_delivered(snapshot, now, due_at)  # noqa: PLW2901
            if len(self._sample) < _SAMPLE:
                self._sample.append(self._replayed(snapshot, now, due_at))
            if not self._dry_run:
                self._move(snapshot, now, due_at)
            self._count += 1
            self._left -= 1
            if self._left == 0:
                return False
        return more

    def _candidates(self, after: int) -> Iterator[tuple[int, Snapshot | None]]:
        if self._source is ReplaySource.LOG:
            return self._logged(after)
        state = State.FAILED if self._source is ReplaySource.FAILED else State.DONE
        return iter(in_publish_order(self.queue, state, after))

    def _logged(self, after: int) -> Iterator[tuple[int, Snapshot | None]]:
        queue = self.queue
        for message, _ in self._log.read(queue.tenant, after + 1, staged=True):
            if queue.cursor is not None and message.offset >= queue.cursor:
                return
            yield message.offset, self._logged_one(message)

    def _logged_one(self, entry: Message) -> Snapshot | None:
        queue = self.queue
        if entry.is_replacement:
            return None  # The original entry has already yielded this message.
        message = entry
        if entry.key is not None:
            newest = self._log.find(queue.tenant, entry.id)
            if newest is None:
                return None  # Retention removed the replacement.
            message = newest[0]
        if not queue.filter.matches(message):
            return None
        for found in snapshots_of(queue, message):
            return None if found.state in LIVE else found
        return Snapshot(queue=queue.name, message=message, state=State.AVAILABLE, attempts=0)

    def _selects(self, snapshot: Snapshot, now: int) -> bool:
        message = snapshot.message
        if self._where is not None and not self._where.matches(message):
            return False
        dead, renewed = self.queue.is_dead_letter, self._ttl_ms is not None
        expired = not dead and not renewed and is_expired(message.expires_at, now)
        if expired or self._is_marked(message):
            self._skipped += 1
            return False
        return True

    def _as_logged(self, snapshot: Snapshot) -> Snapshot:
        """The delivery with the expiry of its message: its own may be that of the queue's ttl."""
        message = snapshot.message
        if message.expires_at is None:
            return snapshot
        logged = self._log.find(self.queue.tenant, message.id)
        return snapshot if logged is None else replace(snapshot, message=logged[0])

    def _as_delivered(self, snapshot: Snapshot, now: int, due_at: int) -> Snapshot:
        """The delivery with its expiry after the replay: it enters the queue again."""
        if self.queue.is_dead_letter:
            return snapshot
        message = snapshot.message
        if self._ttl_ms is not None:
            # The delivery has its own copy of the metadata, so the log does not change.
            expires_at = replay_expires_at(None, due_at, self._ttl_ms)
            message = replace(message, expires_at=expires_at)
        message, _ = entering(self.queue.policy, message, b"", now)
        return snapshot if message is snapshot.message else replace(snapshot, message=message)

    def _is_marked(self, message: Message) -> bool:
        if self._replay_id is None:
            return False
        key = self.queue.keys.replay_mark(message.id, self._replay_id)
        return self.queue.stage.get(key) is not None

    def _replayed(self, before: Snapshot, now: int, due_at: int) -> Snapshot:
        """The delivery as the replay will leave it."""
        delayed, dead = due_at > now, self.queue.is_dead_letter
        failed_at = now if dead else None
        return Snapshot(
            queue=self.queue.name,
            message=before.message,
            state=State.DELAYED if delayed else State.AVAILABLE,
            attempts=0,
            at=due_at if delayed else failed_at,
            error=before.error if dead else None,
        )

    def _move(self, snapshot: Snapshot, now: int, due_at: int) -> None:
        queue, message = self.queue, snapshot.message
        # Load what ``revive`` needs first, while the delivery is still in its old state.
        queue.trail(message.id)
        queue.shelf.load(claim_id_of(queue.policy.bucket_size, message.priority, message.id))
        # A message from the log may never have been claimed: its key is then still open.
        join_open_key(queue, message)
        self._take(snapshot)
        self._log.wanted += 1
        revive(queue, message.id, message.priority, encode_metadata(message), now, due_at)
        if self._replay_id is not None:
            queue.stage.put(queue.keys.replay_mark(message.id, self._replay_id), b"")

    def _take(self, snapshot: Snapshot) -> None:
        queue, message = self.queue, snapshot.message
        if snapshot.state is State.FAILED:
            assert queue.dead is not None
            queue.dead.take_available(
                claim_id_of(queue.policy.bucket_size, message.priority, message.id)
            )
        elif snapshot.state is State.DONE:
            # The delivery may be done in the dead-letter queue.
            where = queue.dead if queue.dead and snapshot.queue == queue.dead.name else queue
            where.remove_done(_find(where.done, message))
            remember_ack(where, message.id, snapshot.at or 0)
        elif snapshot.state is State.EXPIRED:
            queue.remove_expired(_find(queue.expired, message))


class Purge:
    """One purge, slice by slice."""

    def __init__(
        self, queue: Queue, state: State, where: Selection | None, limit: int, slice_size: int
    ) -> None:
        if state is State.IN_FLIGHT:
            raise Conflict(
                "In-flight deliveries cannot be purged: settle or cancel them.", field="state"
            )
        self.queue = queue
        self._state = state
        self._where = where
        self._limit = limit
        self._slice_size = slice_size
        self._position = -1
        self.count = 0
        self.more = False

    def run_slice(self) -> bool:
        """Remove the matching ones of the next deliveries. Returns whether to continue."""
        found = snapshots(self.queue, self._state, self._position)
        looked, more = in_slice(found, self._slice_size)
        for position, snapshot in looked:
            if self._where is not None and not self._where.matches(snapshot.message):
                self._position = position
                continue
            if self.count == self._limit:
                self.more = True
                return False
            self._position = position
            self._remove(snapshot.message)
            self.count += 1
        return more

    def _remove(self, message: Message) -> None:
        queue = self.queue
        claim_id = queue.claim_id(message.priority, message.id)
        match self._state:
            case State.AVAILABLE:
                drop_available(queue, claim_id)
            case State.DELAYED:
                found = queue.find_delayed(claim_id)
                assert found is not None
                drop_delayed(queue, *found)
            case State.FAILED:
                assert queue.dead is not None
                drop_available(queue.dead, claim_id)
            case State.DONE:
                drop_done(queue, _find(queue.done, message), message.id)
            case _:
                drop_expired(queue, _find(queue.expired, message), message.id)


def _find(shelf: SettledShelf, message: Message) -> int:
    """The claim id under which a settled message is kept."""
    found = shelf.find(message.priority, message.id)
    assert found is not None
    return found.claim_id
