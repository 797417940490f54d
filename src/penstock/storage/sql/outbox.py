"""Outbox: publish inside the caller's own database transaction.

The messages are published if and when the caller commits (P2). The catalog is read on a
connection of the engine: the caller's transaction may see an older one. While it is open it
blocks only publishes of the same idempotency ids or keys. Readers of the log stop before its
entries until it ends (L2).
"""

from __future__ import annotations

from typing import Final

from penstock.errors import PenstockError, StoreBusy
from penstock.model.message import PublishReply
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Again, Lost
from penstock.storage.sql.publish import NeedsQueue, Publish, Publishing
from penstock.storage.sql.queues import ensure_queue
from penstock.storage.sql.work import Work

__all__ = ["publish"]

#: How often a publish is retried because the catalog changed meanwhile.
_TRIES: Final = 20


async def publish(core: Core, tenant: str, asked: Publish, connection: object) -> PublishReply:
    """Publish as a part of the transaction that ``connection`` has open."""
    for _ in range(_TRIES):
        known = await core.catalog.reload(tenant)
        try:
            async with core.database.borrowed(connection) as session:
                work = Work(session, known, core.clock.now())
                publishing = Publishing(core, work, alone=True, creates=False, locks_depths=False)
                (reply,) = await publishing.publish_calls([asked])
                if isinstance(reply, PenstockError):
                    raise reply
                await work.write()
                if (await core.catalog.reload(tenant)).version != known.version:
                    raise _Changed
                await core.tell_at_commit(session, {queue for queue, _ in work.ready})
        except NeedsQueue as need:
            await ensure_queue(core, tenant, need.topic)
        except _Changed:
            continue
        except (Again, Lost) as error:
            raise StoreBusy(
                f"The transaction that the publish belongs to cannot continue: {error}."
            ) from error
        else:
            return PublishReply(reply.messages, "transaction", reply.repeated)
    raise StoreBusy("The catalog of the tenant keeps changing.")


class _Changed(Exception):
    """The catalog changed meanwhile."""
