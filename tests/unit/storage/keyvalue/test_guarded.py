from __future__ import annotations

import asyncio

import pytest

from penstock.errors import PenstockError, StoreCorrupt, UnknownQueue
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.committer import Committer
from penstock.storage.keyvalue.guarded import Guarded, changing, reading
from penstock.storage.keyvalue.long_changes import LongChanges
from penstock.storage.keyvalue.notifications import Notifier
from penstock.storage.keyvalue.stage import Stage
from penstock.storage.turns import SLICE_S
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law


class QueueApi(Guarded):
    """Verbs that do what they are told."""

    @changing
    async def change(self, error: BaseException | None) -> int:
        """Change something, then stop."""
        now = self._begin()
        if error is not None:
            raise error
        return now

    @reading
    async def read(self, error: BaseException | None) -> int:
        """Look at something, then stop."""
        now = self._begin()
        if error is not None:
            raise error
        return now


@pytest.fixture
async def stage() -> Stage:
    return Stage(MemoryAdapter())


@pytest.fixture
async def committer(stage: Stage) -> Committer:
    return Committer(MemoryAdapter(), stage, lambda _: None, Notifier())


@pytest.fixture
async def verbs(committer: Committer) -> QueueApi:
    return QueueApi(committer, FakeClock(7), Notifier(), LongChanges(SLICE_S))


async def test_a_verb_answers(verbs: QueueApi) -> None:
    assert await verbs.change(None) == 7
    assert await verbs.read(None) == 7


@pytest.mark.parametrize("verb", ["change", "read"])
async def test_a_refusal_passes_and_the_store_goes_on(verbs: QueueApi, verb: str) -> None:
    refusal = UnknownQueue("q")
    with pytest.raises(UnknownQueue) as caught:
        await getattr(verbs, verb)(refusal)
    assert caught.value is refusal
    assert await verbs.change(None) == 7


@law("X1")
async def test_a_surprise_while_reading_is_damage(verbs: QueueApi) -> None:
    with pytest.raises(StoreCorrupt, match="KeyError") as caught:
        await verbs.read(KeyError("gone"))
    assert isinstance(caught.value.__cause__, KeyError)
    assert await verbs.change(None) == 7


@law("S3")
async def test_a_surprise_while_changing_ends_the_store(
    verbs: QueueApi, committer: Committer, stage: Stage
) -> None:
    """What others have staged is not committed either: nobody can take the half out again."""
    stage.put(b"whole", b"1")
    waiting = committer.commit()
    with pytest.raises(StoreCorrupt, match="KeyError"):
        await verbs.change(KeyError("gone"))
    with pytest.raises(StoreCorrupt):
        await waiting
    for verb in (verbs.change, verbs.read):
        with pytest.raises(StoreCorrupt):
            await verb(None)
    assert committer.completed == 0


@pytest.mark.parametrize("verb", ["change", "read"])
async def test_a_cancelled_verb_is_only_cancelled(verbs: QueueApi, verb: str) -> None:
    with pytest.raises(asyncio.CancelledError):
        await getattr(verbs, verb)(asyncio.CancelledError())
    assert await verbs.change(None) == 7


def test_a_guarded_verb_keeps_its_name() -> None:
    assert QueueApi.change.__name__ == "change"
    assert QueueApi.read.__doc__ == "Look at something, then stop."
    assert issubclass(StoreCorrupt, PenstockError)
