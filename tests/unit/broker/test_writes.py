"""Writes of many batches: begun by one run, finished once, and numbered where they follow (P4)."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Broker
from penstock.errors import BadInput, Conflict
from penstock.model.writes import WRITE_KEPT_MS
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law


@law("P4")
async def test_only_the_last_of_numbered_writes_is_remembered(q: Broker) -> None:
    for number in range(3):
        begun = await q.begin_write("t", "query", f"run {number}", number=number)
        assert (begun.number, begun.run, begun.rows) == (number, f"run {number}", None)
        again = await q.begin_write("t", "query", "another", number=number)
        assert again == begun
        await q.finish_write("t", "query", begun.run, 5, number=number)
        assert (await q.begin_write("t", "query", "another", number=number)).rows == 5
    assert len(await q.engine.list_documents("write/default")) == 1


@law("P4")
async def test_a_write_that_is_renewed_while_old_ones_are_forgotten_is_remembered(
    q: Broker, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await q.begin_write("t", "query", "old", number=7)
    clock.advance(WRITE_KEPT_MS + 1)
    listing = q.engine.list_documents

    async def list_and_renew(kind: str) -> tuple[tuple[str, bytes], ...]:
        found = await listing(kind)
        await q.begin_write("t", "query", "new", number=8)
        return found

    monkeypatch.setattr(q.engine, "list_documents", list_and_renew)
    await q.begin_write("t", "another", "run")
    assert (await q.begin_write("t", "query", "later", number=8)).run == "new"


async def test_old_writes_are_forgotten(q: Broker, clock: FakeClock) -> None:
    await q.begin_write("t", "old", "run")
    clock.advance(WRITE_KEPT_MS + 1)
    await q.begin_write("t", "new", "run")
    assert [name for name, _ in await q.engine.list_documents("write/default")] == ["t/new"]


@law("P4")
async def test_a_number_that_was_passed_is_refused(q: Broker) -> None:
    """A driver that was believed dead comes back with an old micro-batch."""
    await q.begin_write("t", "query", "new", number=8)
    for call in (
        q.begin_write("t", "query", "old", number=7),
        q.finish_write("t", "query", "old", 1, number=7),
    ):
        with pytest.raises(Conflict):
            await call
    assert (await q.begin_write("t", "query", "new", number=8)).rows is None


@law("P4")
async def test_a_write_to_all_topics_is_begun_by_one_run(q: Broker) -> None:
    """Which topics it has shows while it runs."""
    assert (await q.begin_write("a", "w", "first", all_topics=True)).run == "first"
    assert (await q.begin_write("b", "w", "second", all_topics=True)).run == "first"
    # Under the same id, writes to one topic each are independent.
    assert (await q.begin_write("c", "w", "second")).run == "second"
    for number in (1, 2):
        run = f"run {number}"
        assert (await q.begin_write("a", "s", run, number=number, all_topics=True)).run == run
        assert (await q.begin_write("b", "s", "other", number=number, all_topics=True)).run == run
    with pytest.raises(Conflict):
        await q.begin_write("c", "s", "old", number=1, all_topics=True)


@law("E1")
@pytest.mark.parametrize("number", [-1, 1.0, "1", True, 2**63])
async def test_a_number_that_is_none(q: Broker, number: Any) -> None:
    for call in (
        q.begin_write("t", "query", "run", number=number),
        q.finish_write("t", "query", "run", 1, number=number),
    ):
        with pytest.raises(BadInput) as refused:
            await call
        assert refused.value.field == "number"
