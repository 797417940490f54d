"""Replay, purge, cancel and sweep: verbs that move or remove deliveries in bulk."""

from __future__ import annotations

from penstock.errors import Conflict
from penstock.filters import Selection, parse
from penstock.model.delivery import (
    CancelReply,
    PurgeReply,
    ReplayReply,
    ReplaySource,
    Snapshot,
    SweepReply,
)
from penstock.model.message import MessageId, Offset
from penstock.model.queue import Ordering, TopicPolicy
from penstock.model.states import State, Transition
from penstock.storage.contract import EngineOptions
from penstock.testing.oracle import partitions, publishing, read_verbs, transitions
from penstock.testing.oracle.state import Entry, Held, Queue, Store, Tally

__all__ = ["cancel", "purge", "replay", "sweep"]

#: The most deliveries in the sample of a replay.
_SAMPLE = 10


def replay(
    store: Store,
    queue: Queue,
    source: ReplaySource,
    where: Selection | None,
    limit: int,
    now: int,
    *,
    dead: bool,
    rate: int | None,
    dry_run: bool,
    replay_id: str | None,
    ttl_ms: int | None,
) -> ReplayReply:
    """Make the selected deliveries available again, in publish order."""
    if dead and source is ReplaySource.LOG:
        raise Conflict("A dead-letter queue has no log of its own.", field="source")
    dead = dead and source is ReplaySource.DONE
    if dead and ttl_ms is not None:
        raise Conflict("Dead letters do not expire.", field="ttl_ms")
    moved = skipped = 0
    sample: list[Snapshot] = []
    for message_id in _selected(store, queue, source, dead=dead):
        message = store.newest(queue.tenant, message_id).message
        if where is not None and not where.matches(message):
            continue
        if moved == limit:
            break
        mark = (f"{queue.shown_as(dead=dead)} {replay_id}", message_id)
        if (replay_id is not None and mark in queue.replayed) or (
            not dead and ttl_ms is None and transitions.is_expired(message, now)
        ):
            skipped += 1
            continue
        due_at = max(message.deliver_at, now + (moved * 1000 // rate if rate else 0))
        held = _replayed(queue, message_id, due_at, now, dead=dead)
        if ttl_ms is not None:
            held.expires_at = due_at + ttl_ms
        moved += 1
        if len(sample) < _SAMPLE:
            sample.append(read_verbs.snapshot(store, queue, held))
        if not dry_run:
            queue.deliveries[message_id] = held
            if replay_id is not None:
                queue.replayed.add(mark)
    return ReplayReply(count=moved, sample=tuple(sample), skipped=skipped)


def _selected(store: Store, queue: Queue, source: ReplaySource, *, dead: bool) -> list[MessageId]:
    if source is ReplaySource.FAILED:
        return [d.message_id for d in queue.held(dead=True) if d.state is State.AVAILABLE]
    if source is ReplaySource.DONE:
        return [d.message_id for d in queue.held(dead=dead) if d.state is State.DONE]
    routed = {
        e.message.id
        for e in store.entries_of(queue.tenant)
        if queue.cursor is None or e.message.offset < queue.cursor
    }
    return [i for i in sorted(routed) if _may_come_from_log(store, queue, i)]


def _may_come_from_log(store: Store, queue: Queue, message_id: MessageId) -> bool:
    held = queue.deliveries.get(message_id)
    failed = held is not None and held.dead and held.state is State.AVAILABLE
    if held is not None and held.live and not failed:
        return False
    message = store.newest(queue.tenant, message_id).message
    return parse(queue.policy.filter).matches(message)


def _replayed(queue: Queue, message_id: MessageId, due_at: int, now: int, *, dead: bool) -> Held:
    """The delivery after the replay: a new one, except for its history."""
    before = queue.deliveries.get(message_id)
    held = Held(
        message_id=message_id,
        state=State.DELAYED if due_at > now else State.AVAILABLE,
        dead=dead,
        due_at=due_at if due_at > now else None,
        ttl_ends=None if dead else transitions.ttl_ends(queue, now),
        at=now if dead else None,
        error=before.error if dead and before is not None else None,
        events=() if before is None else before.events,
    )
    transitions.note(queue, held, Transition.REPLAY, now)
    return held


def purge(
    store: Store, queue: Queue, state: State, where: Selection | None, limit: int, *, dead: bool
) -> PurgeReply:
    """Remove deliveries in claim order."""
    if state is State.IN_FLIGHT:
        raise Conflict(
            "In-flight deliveries cannot be purged: settle or cancel them.", field="state"
        )
    selected: list[Snapshot] = read_verbs.browse(store, queue, state, where, dead=dead)
    for shown in selected[:limit]:
        held = queue.deliveries[shown.message.id]
        transitions.close_key(store, queue, held)
        transitions.remove(store, queue, held)
    return PurgeReply(count=len(selected[:limit]), more=len(selected) > limit)


def cancel(
    store: Store, tenant: str, message_id: MessageId, named: tuple[Queue, bool] | None
) -> CancelReply:
    """Remove the deliveries of a message, in any state."""
    message = store.newest(tenant, message_id).message
    removed: list[str] = []
    pending: list[str] = []
    for queue in store.queues_of(tenant):
        dead = False
        if named is not None:
            if named[0] is not queue:
                continue
            dead = named[1]
        held = queue.deliveries.get(message_id)
        if held is not None and (held.dead or not dead):
            transitions.close_key(store, queue, held)
            transitions.remove(store, queue, held)
            removed.append(queue.name)
        behind = queue.cursor is not None and queue.cursor <= message.offset
        if behind and not dead and parse(queue.policy.filter).matches(message):
            pending.append(queue.name)
    return CancelReply(len(removed), tuple(removed), tuple(pending))


def _in_order(store: Store) -> list[Queue]:
    """The queues in the order in which they are swept, which is not defined."""
    by_name = [queue for _, queue in sorted(store.queues.items())]
    if not store.appending_last:
        return by_name
    return sorted(
        by_name,
        key=lambda queue: queue.policy.dead_letter_topic is not None or bool(queue.policy.events),
    )


def sweep(store: Store, options: EngineOptions, now: int, limit: int) -> SweepReply:
    """Apply time everywhere, then retention (G1, A1)."""
    tally = Tally(limit)
    for queue in _in_order(store):
        for dead in (False, True):
            transitions.let_time_act(store, queue, now, tally, dead=dead)
        publishing.append_copies(store, options, now)
        if queue.policy.ordering is Ordering.PARTITION:
            partitions.drop_dead_consumers(store, queue, now)
            publishing.append_copies(store, options, now)
        _retain_deliveries(store, queue, now, tally)
    _forget_ids(store, now, tally)
    _forget_batches(store, now, tally)
    for entry in list(store.log):
        if _may_leave_log(store, options, entry, now):
            if not tally.may_go_on():
                break
            _remove_entry(store, entry)
            tally.entries_removed += 1
    return SweepReply(
        due=tally.due,
        lapsed=tally.lapsed,
        expired=tally.expired,
        removed=tally.removed,
        entries_removed=tally.entries_removed,
        ids_forgotten=tally.ids_forgotten,
        more=tally.more,
    )


def _retain_deliveries(store: Store, queue: Queue, now: int, tally: Tally) -> None:
    for held in list(queue.deliveries.values()):
        if held.state in (State.DONE, State.EXPIRED):
            kept_s = queue.policy.done_retention_s
        elif held.dead and held.state is not State.IN_FLIGHT:
            kept_s = queue.policy.failed_retention_s
        else:
            continue
        if kept_s and held.at is not None and held.at + kept_s * 1000 <= now:
            if not tally.may_go_on():
                return
            transitions.remove(store, queue, held)
            tally.removed += 1


def _forget_ids(store: Store, now: int, tally: Tally) -> None:
    for known, (at, _, _) in list(store.ids.items()):
        tenant, topic = known[:2]
        policy = store.topics.get((tenant, topic), TopicPolicy())
        if at + policy.dedup_window_ms <= now:
            if not tally.may_go_on():
                return
            del store.ids[known]
            tally.ids_forgotten += 1


def _forget_batches(store: Store, now: int, tally: Tally) -> None:
    for batch, seen in list(store.batches.items()):
        if seen.is_over(store.topics.get(batch[:2], TopicPolicy()), now):
            if not tally.may_go_on():
                return
            del store.batches[batch]
            tally.ids_forgotten += 1


def _may_leave_log(store: Store, options: EngineOptions, entry: Entry, now: int) -> bool:
    message = entry.message
    queues = store.queues_of(entry.tenant)
    return (
        message.published_at + options.limits.log_retention_ms <= now
        and not any(message.id in queue.deliveries for queue in queues)
        and all(queue.cursor is None or queue.cursor > message.offset for queue in queues)
        and (not options.archive or message.offset <= store.archived.get(entry.tenant, -1))
    )


def _remove_entry(store: Store, entry: Entry) -> None:
    store.log.remove(entry)
    before = store.trimmed.get(entry.tenant, Offset(0))
    store.trimmed[entry.tenant] = max(before, Offset(entry.message.offset + 1))
    left = any(e.message.id == entry.message.id for e in store.entries_of(entry.tenant))
    if not left:
        del store.messages[(entry.tenant, entry.message.id)]
