"""Defects that the engine once had, put back: the simulation has to find each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker import claim, queues, replay
from penstock.broker.scope import to_where
from penstock.filters.batch_routes import BatchRoutes
from penstock.model import decisions
from penstock.model.queue import QueuePolicy, TopicPolicy, auto_created_policy
from penstock.model.states import Transition
from penstock.storage.keyvalue import core, moves, passing_time, read_verbs, settle, sweep
from penstock.storage.keyvalue.dead_letter_copies import CopyingVerbs
from penstock.storage.keyvalue.dedup import Dedup
from penstock.storage.keyvalue.long_changes import LongChanges
from penstock.storage.keyvalue.queue import Queue
from penstock.testing.simulation.engines import simulation_of

pytestmark = [
    pytest.mark.slow,  # Each takes up to 300 seeds, if the simulation has changed.
    pytest.mark.timeout(600),
]
#: Most are found by the first thirty seeds.
SEEDS = 300
_Patch = pytest.MonkeyPatch


def _keep_deleted_queues(patch: _Patch) -> None:
    """Replay and purge go on with the queue that they began with."""
    patch.setattr(Queue, "check_exists", lambda self: None)


def _accept_stale_receipts(patch: _Patch) -> None:
    """A receipt stands for its delivery, whichever claim it was."""

    class Claims(dict[str, Any]):
        def get(self, receipt: str, default: Any = None) -> Any:
            named = receipt.split("-")[:2]
            found = (entry for held, entry in self.items() if held.split("-")[:2] == named)
            return super().get(receipt) or next(found, default)

    first = Queue.__init__

    def build(self: Queue, *args: Any, **kwargs: Any) -> None:
        first(self, *args, **kwargs)
        self.claims = Claims()  # type: ignore[assignment]

    patch.setattr(Queue, "__init__", build)


def _forget_attempts(patch: _Patch) -> None:
    """A lease that lapses takes its attempt back."""

    def lapsing(queue: Any, entry: Any, now: int, transition: Transition) -> Any:
        entry.attempts -= transition is Transition.LAPSE
        return moves.give_back(queue, entry, now, transition)

    patch.setattr(passing_time, "give_back", lapsing)


def _forget_ids(patch: _Patch) -> None:
    """Ids are remembered until the store is closed."""
    known: dict[tuple[int, str, str, str], Any] = {}

    def find(self: Dedup, tenant: str, topic: str, id: str, *, partitioned: bool = False) -> Any:
        return known.get((builtin_id(self), tenant, topic, id))

    def remember(
        self: Dedup,
        tenant: str,
        topic: str,
        id: str,
        first: Any,
        window_ms: int,
        *,
        partitioned: bool = False,
    ) -> None:
        known[builtin_id(self), tenant, topic, id] = first

    patch.setattr(Dedup, "find", find)
    patch.setattr(Dedup, "remember", remember)


def _let_verbs_into_long_changes(patch: _Patch) -> None:
    """Verbs do not wait until the end of a long change."""

    async def over(self: LongChanges) -> None:
        await asyncio.sleep(0)

    patch.setattr(LongChanges, "over", over)


def _let_verbs_into_encoding(patch: _Patch) -> None:
    """A verb may run after a commit was encoded in part, before the rest is."""
    begin = LongChanges.begin

    def beginning(self: LongChanges, steps: Any) -> bool:
        is_over = begin(self, steps)
        self.under_way = False
        return is_over

    run_slice = LongChanges._run_slice

    def running(self: LongChanges, steps: Any) -> bool:
        self.under_way = True
        return run_slice(self, steps)

    patch.setattr(LongChanges, "begin", beginning)
    patch.setattr(LongChanges, "_run_slice", running)


def _forget_settles(patch: _Patch) -> None:
    """A settle with publish that is sent again is a new one."""
    patch.setattr(Dedup, "find_settle", lambda *args: None)


def _route_by_old_filters(patch: _Patch) -> None:
    """A large publish goes to the queues that there were when it began."""
    patch.setattr(BatchRoutes, "finish", lambda self: None)


def _repeat_any_ack(patch: _Patch) -> None:
    """An ack of before a replay succeeds if its delivery is done again."""

    def was_acked(queue: Queue, receipt: str) -> bool:
        read = queue.receipts.read(receipt)
        done = None if read is None else queue.done.get(read[1])
        return read is not None and done is not None and done.attempts == read[3]

    patch.setattr(settle, "_was_acked", was_acked)


def _keep_the_old_limit(patch: _Patch) -> None:
    """``max_attempts`` that was lowered applies after the next attempt."""

    def is_exhausted(policy: QueuePolicy, own: int | None, attempts: int, released: int) -> bool:
        return attempts - released >= (max(9, policy.max_attempts) if own is None else own)

    patch.setattr(decisions, "is_exhausted", is_exhausted)


def _sweep_deleted_queues(patch: _Patch) -> None:
    """A sweep goes on with a queue that was deleted, and created again, meanwhile."""
    patch.setattr(sweep, "SLICE_MOVES", 1)
    patch.setattr(
        Queue, "deleted", property(lambda self: False, lambda self, value: None), raising=False
    )


def _copy_in_another_commit(patch: _Patch) -> None:
    """Dead-letter copies are appended after the commit that ends their deliveries."""
    append = CopyingVerbs._append_copies

    async def appending(self: CopyingVerbs) -> None:
        stage = self._core.stage
        ended, stage.ended = stage.ended, []
        await self._committer.commit()
        stage.ended = ended
        await append(self)

    patch.setattr(CopyingVerbs, "_append_copies", appending)


def _find_only_ids_of_topics(patch: _Patch) -> None:
    """``find`` does not know the ids that are unique per partition."""
    patch.setattr(read_verbs, "is_partitioned", lambda policy: False)
    patch.setattr(read_verbs, "stored_id", lambda policy, text, partition_key: text)


def _purge_whatever_the_ids(patch: _Patch) -> None:
    """A purge removes messages that its ids do not name."""
    patch.setattr(replay, "to_selection", lambda where, ids: to_where(where))


def _forget_defaults_of_topics(patch: _Patch) -> None:
    """A publish creates queues with the defaults of the server only."""

    def created(name: str, demand: TopicPolicy, default: QueuePolicy) -> QueuePolicy:
        return auto_created_policy(name, TopicPolicy(), default)

    patch.setattr(core, "auto_created_policy", created)


def _claim_the_limit_from_every_queue(patch: _Patch) -> None:
    """A claim of several queues grants its limit in each of them."""

    async def claim_round(queues: Any, limit: int, order: str, claim_one: Any) -> list[Any]:
        return [delivery for queue in queues for delivery in await claim_one(queue, limit)]

    patch.setattr(claim, "claim_round", claim_round)


def _list_any_queue(patch: _Patch) -> None:
    """A listing does not look at the labels."""
    patch.setattr(queues, "check_labels", lambda labels: {})


def _revert_to_built_in_defaults(patch: _Patch) -> None:
    """Null reverts to the built-in default, not to the server's."""
    updated = queues.updated_policy
    patch.setattr(
        queues, "updated_policy", lambda policy, fields, _: updated(policy, fields, QueuePolicy())
    )


builtin_id = id


#: Each defect with the first seed that finds it, which is tried first: that saves 40 s.
FOUND_BY: dict[Callable[[_Patch], None], int] = {
    _keep_deleted_queues: 121,
    _accept_stale_receipts: 4,
    _forget_attempts: 0,
    _forget_ids: 1,
    _let_verbs_into_long_changes: 1,
    _let_verbs_into_encoding: 0,
    _forget_settles: 18,
    _route_by_old_filters: 39,
    _keep_the_old_limit: 7,
    _repeat_any_ack: 77,
    _sweep_deleted_queues: 20,
    _copy_in_another_commit: 320,
    _find_only_ids_of_topics: 6,
    _purge_whatever_the_ids: 56,
    _forget_defaults_of_topics: 11,
    _claim_the_limit_from_every_queue: 7,
    _list_any_queue: 7,
    _revert_to_built_in_defaults: 19,
}


@pytest.mark.parametrize(
    "defect, first_seed",
    FOUND_BY.items(),
    ids=[defect.__name__.strip("_") for defect in FOUND_BY],
)
def test_a_defect_is_found(
    defect: Callable[[_Patch], None], first_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    simulation = simulation_of("keyvalue")
    seeds = (first_seed, *(seed for seed in range(SEEDS) if seed != first_seed))
    outcomes = (simulation.run(simulation.program(seed, 60)) for seed in seeds)
    assert any(outcome.violations for outcome in outcomes)
