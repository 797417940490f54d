"""The inbox: publishes files that are moved to ``inbox/<topic>/`` of a store in files (P4).

Every file becomes one message with the file's bytes as payload and its name as the header ``file``.
It is taken by a rename, published under a batch id that is made of the new name, and removed after
the commit. A crash at any point leaves either the file in the inbox or a taken file whose batch id
is remembered, so the file is published exactly once. A file that is refused is moved to
``refused/<topic>/``; one for a full queue waits, and holds up no other topic.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from penstock.broker import Broker, BrokerOptions
from penstock.errors import PenstockError, QueueFull, StoreError, TooLarge
from penstock.keepers.inbox_files import Inbox, TakenFile
from penstock.keepers.keeper import Pass
from penstock.model.limits import MAX_BATCH_MS, check_name
from penstock.model.message import NewMessage
from penstock.storage.contract import Engine

__all__ = ["InboxFiles"]

INBOX_EVERY_MS: Final = 500
#: Files per topic and pass: they are in memory until their commit.
FILES_A_PASS: Final = 64
#: How long a crashed server may stay down before a file that it had published, but not removed, is
#: published again.
REMEMBERED_MS: Final = MAX_BATCH_MS
_DEFAULT_TENANT: Final = "default"
_log = logging.getLogger("penstock.keepers")


class InboxFiles:
    """Publishes the files of all inboxes of a store."""

    name: Final = "inbox"
    every_ms: Final = INBOX_EVERY_MS

    def __init__(self, engine: Engine, options: BrokerOptions, root: Path) -> None:
        self._engine = engine
        self._options = options
        self._root = root
        self._brokers: dict[str, Broker] = {}
        #: Tenants and topics with a queue that was full.
        self._full: set[tuple[str, str]] = set()

    async def run(self) -> Pass:
        """Publish some files of every topic of every tenant."""
        work, more = 0, False
        failure: PenstockError | None = None
        for tenant, root in await asyncio.to_thread(self._roots):
            inbox = Inbox(root)
            for topic in await asyncio.to_thread(inbox.topics):
                # Of a topic that was full, one file shows whether it still is.
                limit = 1 if (tenant, topic) in self._full else FILES_A_PASS
                taken = await asyncio.to_thread(inbox.take, topic, limit)
                errors = await self._handle_all(tenant, inbox, topic, taken)
                if (tenant, topic) not in self._full:
                    failure = errors[-1] if errors else failure
                work += len(taken) - len(errors)
                more = more or (len(taken) == limit and not errors)
        if failure is not None:
            raise failure  # The taken files remain, and are published by a later pass.
        return Pass(work, more)

    async def _handle_all(
        self, tenant: str, inbox: Inbox, topic: str, taken: Sequence[TakenFile]
    ) -> list[PenstockError]:
        """Publish files of one topic; returns the errors, and notes whether a queue is full."""
        outcomes = await asyncio.gather(
            *(self._handle(tenant, inbox, file) for file in taken), return_exceptions=True
        )
        errors: list[PenstockError] = []
        for outcome in outcomes:
            if isinstance(outcome, PenstockError):
                errors.append(outcome)
            elif outcome is not None:
                raise outcome
        self._full.discard((tenant, topic))
        if errors and all(isinstance(error, QueueFull) for error in errors):
            self._full.add((tenant, topic))
        return errors

    def _roots(self) -> list[tuple[str, Path]]:
        """The tenants that have an inbox, with their directories."""
        others = [path for path in (self._root / "tenants").glob("*") if path.is_dir()]
        return [
            (_DEFAULT_TENANT, self._root),
            *((unquote(path.name), path) for path in sorted(others)),
        ]

    async def _handle(self, tenant: str, inbox: Inbox, taken: TakenFile) -> None:
        """Publish one file and remove it, or move it to the refused ones."""
        try:
            payload = await asyncio.to_thread(self._read, taken.path)
            name = os.fsencode(taken.name).decode(errors="replace")
            message = NewMessage(payload, headers={"file": name})
            await self._broker(tenant).publish_batch(
                taken.topic, [message], batch_id=f"inbox-{taken.id}", batch_ms=REMEMBERED_MS
            )
        except PenstockError as error:
            if error.retryable or isinstance(error, StoreError):
                raise
            path = await asyncio.to_thread(inbox.refuse, taken, str(error))
            _log.warning("A file of the inbox was refused and is now %s: %s", path, error)
            return
        with suppress(FileNotFoundError):
            await asyncio.to_thread(taken.path.unlink)

    def _broker(self, tenant: str) -> Broker:
        if tenant not in self._brokers:
            check_name(tenant, "tenant")
            self._brokers[tenant] = Broker(self._engine, self._options, tenant)
        return self._brokers[tenant]

    def _read(self, path: Path) -> bytes:
        limit = self._options.engine.limits.payload_bytes
        size = path.stat().st_size
        if size > limit:
            raise TooLarge(
                f"A file of {size} bytes is over the limit of {limit}.",
                field="payload",
                limit=limit,
            )
        return path.read_bytes()
