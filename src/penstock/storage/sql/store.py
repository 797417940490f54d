"""The identity of a store: one row with two random values and the database it was written to (A1).

The ``place`` column describes that database. It is compared on every call of ``identity``, not
only when a server starts: the database behind a connection may be restored, or fail over, while
servers run. All servers of a database see the same place, so the first to notice starts the epoch.
"""

from __future__ import annotations

from penstock.model.identity import (
    ID_BYTES,
    StoreIdentity,
    check_position,
    check_store,
    derive_identity,
    derive_receipt_key,
)
from penstock.model.message import Offset
from penstock.storage.copied_receipts import RECEIPT_KIND, decode_claims
from penstock.storage.location import is_same_location
from penstock.storage.sql.claim_numbers import Receipts
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import RetryTransaction, Row, Session
from penstock.storage.sql.log import end_of_log
from penstock.storage.sql.work import Work

__all__ = [
    "add_document",
    "archived",
    "delete_document",
    "ensure",
    "get_document",
    "identity",
    "identity_in",
    "list_documents",
    "new_epoch",
    "put_document",
]


async def ensure(core: Core) -> None:
    """Give the store an identity if it has none; begin a new epoch if it is a copy.

    Also derives the key of the store's receipts.
    """
    store, _ = await core.run_without_tenant(lambda session: _read(core, session), transaction=True)
    copied = decode_claims(await list_documents(core, RECEIPT_KIND))
    core.receipts = Receipts(derive_receipt_key(store), copied)


async def identity(core: Core, tenant: str) -> StoreIdentity:
    """The store's identity for this tenant."""

    async def look(session: Session) -> tuple[list[Row], str]:
        return await session.fetch("find_identity"), await _place(session)

    # Streams call this before every batch, so the row is locked only if it must be written.
    rows, place = await core.run_without_tenant(look)
    if rows and is_same_location(rows[0][2], place):
        return derive_identity(bytes(rows[0][0]), bytes(rows[0][1]), tenant)
    store, epoch = await core.run_without_tenant(
        lambda session: _read(core, session), transaction=True
    )
    return derive_identity(store, epoch, tenant)


async def identity_in(session: Session, tenant: str) -> StoreIdentity:
    """The tenant's identity as of this transaction; the place is not compared."""
    ((store, epoch, _),) = await session.fetch("find_identity")
    return derive_identity(bytes(store), bytes(epoch), tenant)


async def new_epoch(core: Core) -> None:
    """Begin a new epoch."""

    async def act(session: Session) -> None:
        await _read(core, session)
        await _change(core, session, await _place(session))

    await core.run_without_tenant(act, transaction=True)


async def archived(core: Core, tenant: str, through: Offset, store: StoreIdentity) -> None:
    """Record that every entry at or below ``through`` has a verified copy (A1)."""
    settled = (await core.stable()).settled

    async def act(work: Work) -> None:
        present = derive_identity(*await _read(core, work.session), tenant)
        check_store(present, store, "What was archived")
        end = await end_of_log(work.session, work.tenant.number, settled)
        check_position(through + 1, end, "What was archived")
        await work.session.run("archive_through", tenant=work.tenant.number, through=int(through))

    await core.transact(tenant, act)


async def _read(core: Core, session: Session) -> tuple[bytes, bytes]:
    """The current identity and epoch of the store; the row stays locked."""
    place = await _place(session)
    rows = await session.fetch("lock_identity")
    if not rows:
        random = core.options.random
        await session.run(
            "make_identity", store=random(ID_BYTES), epoch=random(ID_BYTES), place=place
        )
        rows = await session.fetch("lock_identity")
    store, epoch, known = rows[0]
    if not is_same_location(known, place):
        return bytes(store), await _change(core, session, place)
    if known != place:
        # Another version of Penstock, or of the database, describes the same place differently.
        await session.run("change_epoch", epoch=bytes(epoch), place=place)
    return bytes(store), bytes(epoch)


async def _change(core: Core, session: Session, place: str) -> bytes:
    await core.check_schema(session)
    epoch = core.options.random(ID_BYTES)
    await session.run("change_epoch", epoch=epoch, place=place)
    return epoch


async def _place(session: Session) -> str:
    ((place,),) = await session.fetch("place")
    return str(place)


# -- documents: small named values beside the queues ---------------------------------


async def put_document(core: Core, kind: str, name: str, value: bytes) -> None:
    """Store or replace the document."""

    async def act(session: Session) -> int:
        await core.check_schema(session)
        return await session.run("put_document", kind=kind, name=name, value=value)

    await core.run_without_tenant(act, transaction=True)


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
            raise RetryTransaction("another server deleted the document")
        there = bytes(rows[0][0])
        if there != replaces:
            return there
        await session.run("put_document", kind=kind, name=name, value=value)
        return value

    return await core.run_without_tenant(act, transaction=True)


async def get_document(core: Core, kind: str, name: str) -> bytes | None:
    """The document, or None."""
    rows = await core.fetch("get_document", kind=kind, name=name)
    return bytes(rows[0][0]) if rows else None


async def list_documents(core: Core, kind: str) -> tuple[tuple[str, bytes], ...]:
    """All documents of the kind, by name."""
    rows = await core.fetch("list_documents", kind=kind)
    return tuple((name, bytes(value)) for name, value in rows)


async def delete_document(core: Core, kind: str, name: str, value: bytes | None) -> bool:
    """Remove the document, with ``value`` only if it has this value; returns whether it did."""

    async def act(session: Session) -> int:
        await core.check_schema(session)
        if value is not None:
            rows = await session.fetch("lock_document", kind=kind, name=name)
            if not rows or bytes(rows[0][0]) != value:
                return 0
        return await session.run("delete_document", kind=kind, name=name)

    return bool(await core.run_without_tenant(act, transaction=True))
