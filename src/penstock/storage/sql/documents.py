"""Documents: small named values that a service stores beside its queues."""

from __future__ import annotations

from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Again, Row, Session

__all__ = ["add_document", "delete_document", "get_document", "list_documents", "put_document"]


async def put_document(core: Core, kind: str, name: str, value: bytes) -> None:
    """Store or replace the document."""

    async def act(session: Session) -> int:
        await core.check_schema(session)
        return await session.run("put_document", kind=kind, name=name, value=value)

    await core.plainly(act, transaction=True)


async def add_document(
    core: Core, kind: str, name: str, value: bytes, replaces: bytes | None
) -> bytes:
    """Store the document unless one other than ``replaces`` exists; returns the stored one."""

    async def act(session: Session) -> bytes:
        await core.check_schema(session)
        await session.run("add_document", kind=kind, name=name, value=value)
        rows = await session.fetch("lock_document", kind=kind, name=name)
        if not rows:
            # It existed, and another server deleted it before this transaction locked it.
            raise Again("another server deleted the document")
        there = bytes(rows[0][0])
        if there != replaces:
            return there
        await session.run("put_document", kind=kind, name=name, value=value)
        return value

    return await core.plainly(act, transaction=True)


async def get_document(core: Core, kind: str, name: str) -> bytes | None:
    """The document, or None."""

    async def act(session: Session) -> list[Row]:
        return await session.fetch("get_document", kind=kind, name=name)

    rows = await core.plainly(act)
    return bytes(rows[0][0]) if rows else None


async def list_documents(core: Core, kind: str) -> tuple[tuple[str, bytes], ...]:
    """All documents of the kind, by name."""

    async def act(session: Session) -> list[Row]:
        return await session.fetch("list_documents", kind=kind)

    return tuple((name, bytes(value)) for name, value in await core.plainly(act))


async def delete_document(core: Core, kind: str, name: str) -> bool:
    """Remove the document; returns whether it existed."""

    async def act(session: Session) -> int:
        await core.check_schema(session)
        return await session.run("delete_document", kind=kind, name=name)

    return bool(await core.plainly(act, transaction=True))
