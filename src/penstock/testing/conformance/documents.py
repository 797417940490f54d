"""Documents: a value stays under its kind and name until it is replaced or deleted."""

from __future__ import annotations

import asyncio

import pytest

from penstock.testing.conformance.harness import TENANT, Conformance, Store
from penstock.testing.laws import law

__all__ = ["TestDocuments"]


class TestDocuments(Conformance):
    """put, get, list, delete."""

    @pytest.mark.parametrize("value", [b"", b"{}", bytes(range(256)), b"\x00" * 65_536])
    async def test_a_document_comes_back_as_it_was_put(self, store: Store, value: bytes) -> None:
        await store.engine.put_document("keys", "k1", value)
        assert await store.engine.get_document("keys", "k1") == value
        assert await store.engine.list_documents("keys") == (("k1", value),)

    async def test_the_last_put_stands(self, store: Store) -> None:
        for value in (b"first", b"a longer second", b"3"):
            await store.engine.put_document("keys", "k1", value)
            assert await store.engine.get_document("keys", "k1") == value
        assert await store.engine.list_documents("keys") == (("k1", b"3"),)

    async def test_the_first_add_stands(self, store: Store) -> None:
        assert await store.engine.add_document("writes", "w", b"first") == b"first"
        assert await store.engine.add_document("writes", "w", b"second") == b"first"
        assert await store.engine.add_document("writes", "other", b"") == b""
        await store.engine.put_document("writes", "w", b"replaced")
        assert await store.engine.add_document("writes", "w", b"third") == b"replaced"
        assert await store.engine.get_document("writes", "w") == b"replaced"

    async def test_an_add_replaces_what_it_knows(self, store: Store) -> None:
        add = store.engine.add_document
        assert await add("writes", "w", b"1", b"unknown") == b"1"
        assert await add("writes", "w", b"2", b"0") == b"1"
        assert await add("writes", "w", b"2", b"1") == b"2"
        assert await add("writes", "w", b"", b"2") == b""
        assert await add("writes", "w", b"4", b"") == b"4"
        assert await store.engine.get_document("writes", "w") == b"4"

    async def test_of_replacements_at_the_same_time_one_wins(self, store: Store) -> None:
        await store.engine.put_document("writes", "w", b"old")
        values = [b"%d" % number for number in range(8)]
        found = await asyncio.gather(
            *(store.engine.add_document("writes", "w", value, b"old") for value in values)
        )
        stored = await store.engine.get_document("writes", "w")
        assert stored in values
        assert set(found) == {stored}

    async def test_of_adds_at_the_same_time_one_wins(self, store: Store) -> None:
        values = [b"%d" % number for number in range(8)]
        found = await asyncio.gather(
            *(store.engine.add_document("writes", "w", value) for value in values)
        )
        stored = await store.engine.get_document("writes", "w")
        assert stored in values
        assert set(found) == {stored}

    async def test_what_was_never_put_is_not_there(self, store: Store) -> None:
        await store.engine.put_document("keys", "k1", b"x")
        assert await store.engine.get_document("keys", "k") is None
        assert await store.engine.get_document("key", "k1") is None
        assert await store.engine.list_documents("runs") == ()

    async def test_documents_are_listed_by_name(self, store: Store) -> None:
        names = ["b", "a/b", "a", "B", "ä", "a.b", "10", "9"]
        for name in names:
            await store.engine.put_document("keys", name, name.encode())
        expected = tuple((name, name.encode()) for name in sorted(names))
        assert await store.engine.list_documents("keys") == expected

    async def test_kinds_that_begin_alike_do_not_mix(self, store: Store) -> None:
        kinds = ["a", "ab", "a.b", "a-", "A"]
        for kind in kinds:
            for name in ("n", "bn", "b"):
                await store.engine.put_document(kind, name, f"{kind} {name}".encode())
        assert await store.engine.delete_document("a", "b")
        for kind in kinds:
            left = [n for n in ("b", "bn", "n") if (kind, n) != ("a", "b")]
            listed = await store.engine.list_documents(kind)
            assert listed == tuple((n, f"{kind} {n}".encode()) for n in left)

    async def test_a_document_that_has_changed_is_not_deleted(self, store: Store) -> None:
        delete = store.engine.delete_document
        assert not await delete("writes", "w", b"old")
        await store.engine.put_document("writes", "w", b"new")
        assert not await delete("writes", "w", b"old")
        assert await store.engine.get_document("writes", "w") == b"new"
        assert await delete("writes", "w", b"new")
        assert await store.engine.get_document("writes", "w") is None

    async def test_deleting_says_whether_there_was_one(self, store: Store) -> None:
        assert not await store.engine.delete_document("keys", "k1")
        await store.engine.put_document("keys", "k1", b"x")
        await store.engine.put_document("keys", "k2", b"y")
        assert await store.engine.delete_document("keys", "k1")
        assert not await store.engine.delete_document("keys", "k1")
        assert await store.engine.get_document("keys", "k1") is None
        assert await store.engine.list_documents("keys") == (("k2", b"y"),)
        await store.engine.put_document("keys", "k1", b"again")
        assert await store.engine.get_document("keys", "k1") == b"again"

    @law("Q1")
    async def test_documents_and_queues_leave_each_other_alone(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        before = await store.picture("q")
        await store.engine.put_document("q", "q", b"x")
        await store.engine.put_document(TENANT, "q", b"x")
        await store.engine.delete_document(TENANT, "q")
        assert await store.picture("q") == before
        await store.engine.delete_queue(TENANT, "q")
        await store.sweep_all()
        assert await store.engine.get_document("q", "q") == b"x"

    @law("T1")
    async def test_a_document_makes_no_tenant(self, store: Store) -> None:
        await store.engine.put_document("keys", f"{TENANT}/k1", b"x")
        assert await store.engine.tenants() == ()

    @law("P1")
    async def test_documents_are_there_after_reopening(self, store: Store) -> None:
        for name in ("a", "b", "c"):
            await store.engine.put_document("keys", name, name.encode())
        await store.engine.put_document("keys", "b", b"replaced")
        await store.engine.delete_document("keys", "c")
        await store.reopen()
        assert await store.engine.list_documents("keys") == (("a", b"a"), ("b", b"replaced"))
        assert await store.engine.get_document("keys", "c") is None
