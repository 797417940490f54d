"""The transactions of docs/sql.md, on PostgreSQL."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import asyncpg
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, Session, mapped_column

import penstock
from tests.databases import store_url
from tests.unit.test_doc_snippets import run

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


async def test_with_a_driver() -> None:
    url = store_url("postgresql", "sqlpage")
    async with penstock.open(url) as q, asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
        await pool.execute("CREATE TABLE orders (id bigint)")
        block = SNIPPETS[0].replace("orders …", "orders VALUES (7)")
        await run(block, {"pool": pool, "q": q})
        assert await pool.fetchval("SELECT id FROM orders") == 7
        [entry] = (await q.read_log(payloads=True)).entries
        assert entry.payload == b'{"order":7}'


class Base(MappedAsDataclass, DeclarativeBase):  # type: ignore[misc]
    """Tables of this test."""


class Order(Base):
    """A row."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


def test_with_sqlalchemy() -> None:
    url = store_url("postgresql", "sqlpage")
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    names: dict[str, Any] = {"Session": Session, "engine": engine, "Order": Order}
    with penstock.sync.open(url) as q:
        Base.metadata.create_all(engine)
        exec(compile(SNIPPETS[1], "docs/sql.md", "exec"), names | {"q": q})
        with engine.connect() as connection:
            assert connection.execute(sqlalchemy.text("SELECT id FROM orders")).scalar() == 7
        [entry] = q.read_log(payloads=True).entries
        assert entry.payload == b'{"order":7}'
    engine.dispose()
