"""Conformance of ``identity``, ``new_epoch`` and ``archived``: positions name their store (A1)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.errors import OtherStore
from penstock.model.message import Offset
from penstock.testing.conformance.harness import (
    OTHER_TENANT,
    TENANT,
    Conformance,
    Store,
    opened_with,
)
from penstock.testing.laws import law

__all__ = ["TestIdentity"]

#: Longer than the log retention.
_PAST_RETENTION_MS = 25 * 3600 * 1000


async def _kept(store: Store) -> int:
    """How many log entries are left after retention."""
    store.clock.advance(_PAST_RETENTION_MS)
    await store.sweep_all()
    return len((await store.engine.read_log(TENANT, Offset(0), 100)).entries)


class TestIdentity(Conformance):
    """A store is distinguished from others, and from itself before a restore."""

    async def test_an_identity_stays(self, store: Store) -> None:
        first = await store.engine.identity(TENANT)
        await store.publish(b"x")
        assert await store.engine.identity(TENANT) == first
        assert len(first.store) == len(first.epoch) == 32

    async def test_an_identity_survives_reopening(self, store: Store) -> None:
        first = await store.engine.identity(TENANT)
        await store.reopen()
        assert await store.engine.identity(TENANT) == first

    @law("T1")
    async def test_tenants_have_identities_of_their_own(self, store: Store) -> None:
        ours = await store.engine.identity(TENANT)
        theirs = await store.engine.identity(OTHER_TENANT)
        assert {ours.store, ours.epoch}.isdisjoint({theirs.store, theirs.epoch})

    async def test_a_new_epoch_keeps_the_store(self, store: Store) -> None:
        before = await store.engine.identity(TENANT)
        theirs = await store.engine.identity(OTHER_TENANT)
        await store.engine.new_epoch()
        after = await store.engine.identity(TENANT)
        assert after.store == before.store
        assert after.epoch != before.epoch
        assert (await store.engine.identity(OTHER_TENANT)).epoch != theirs.epoch

    async def test_a_new_epoch_survives_reopening(self, store: Store) -> None:
        before = await store.engine.identity(TENANT)
        await store.engine.new_epoch()
        after = await store.engine.identity(TENANT)
        await store.reopen()
        assert await store.engine.identity(TENANT) == after != before

    @law("A1")
    @opened_with(archive=True)
    async def test_another_store_archives_nothing_here(self, store: Store) -> None:
        (message_id,) = await store.publish(b"x")
        ours = await store.engine.identity(TENANT)
        theirs = await store.engine.identity(OTHER_TENANT)
        for other in (theirs, replace(ours, store=theirs.store), replace(ours, epoch="0" * 32)):
            with pytest.raises(OtherStore):
                await store.engine.archived(TENANT, Offset(message_id), other)
        assert await _kept(store) == 1

    @law("A1")
    @opened_with(archive=True)
    async def test_an_epoch_that_is_over_archives_nothing(self, store: Store) -> None:
        (message_id,) = await store.publish(b"x")
        before = await store.engine.identity(TENANT)
        await store.engine.new_epoch()
        with pytest.raises(OtherStore):
            await store.engine.archived(TENANT, Offset(message_id), before)
        assert await _kept(store) == 1

    @law("A1")
    @opened_with(archive=True)
    async def test_an_archive_cannot_be_ahead_of_the_log(self, store: Store) -> None:
        """A copy that claims to be beyond the log's end does not contain later messages."""
        await store.publish(b"x")
        identity = await store.engine.identity(TENANT)
        end = await store.engine.log_end(TENANT)
        with pytest.raises(OtherStore):
            await store.engine.archived(TENANT, end, identity)
        await store.publish(b"y")
        assert await _kept(store) == 2
        last = Offset(await store.engine.log_end(TENANT) - 1)
        await store.engine.archived(TENANT, last, identity)
        assert await _kept(store) == 0
