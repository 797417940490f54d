"""Documents that two servers add and delete at the same time."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.storage.sql.gates import Between
from tests.unit.storage.sql.pairs import Pair

#: Seconds that a call is given that may have to wait for the one under test.
WAIT_S = 0.5


async def test_a_document_that_is_deleted_while_another_server_adds_it(
    pair: Pair, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.a.put_document("kind", "name", b"old")
    between = Between(dialect, monkeypatch)
    deleting: list[asyncio.Future[bool]] = []

    async def delete() -> None:
        deleting.append(asyncio.ensure_future(pair.b.delete_document("kind", "name")))
        await asyncio.wait(deleting, timeout=WAIT_S)

    between.after("add_document", delete)
    there = await pair.a.add_document("kind", "name", b"new", None)
    assert await deleting[0]
    # MySQL has locked the old one by then, and it is deleted after it was found.
    assert there == (b"new" if dialect == "postgresql" else b"old")
    kept = await pair.a.get_document("kind", "name")
    assert kept == (b"new" if dialect == "postgresql" else None)
