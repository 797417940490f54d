"""Settle with publish: settlements and messages in one commit, or nothing of it (S3).

A call that is repeated is answered as the first time, and stores nothing (P4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.model.delivery import Settlement, SettleReply
from penstock.model.message import Durability, Outgoing, Published
from penstock.storage.keyvalue.core import Core
from penstock.storage.keyvalue.publish import Plan
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.routed_ahead import RoutedAhead
from penstock.storage.keyvalue.settle import abort, leaving, settle, stale
from penstock.storage.keyvalue.tenant import Tenant
from penstock.storage.repetition import decode_reply, encode_reply, settle_id
from penstock.storage.topic_checks import CheckedBy, check_topics

__all__ = ["SettleAndPublish"]

#: What a reply says until the commit has said it.
_NOT_YET: Final[Durability] = "none"


class SettleAndPublish:
    """One call. It runs without waiting, so the queue cannot change under it."""

    def __init__(
        self,
        core: Core,
        tenant: Tenant,
        queue: Queue,
        settlements: Sequence[Settlement],
        now: int,
        checked: CheckedBy,
    ) -> None:
        self._core = core
        self._tenant = tenant
        self._queue = queue
        self._settlements = settlements
        self._now = now
        self._checked = checked
        self._id = settle_id(settlements)

    def carry_out(
        self,
        publish: Sequence[Outgoing],
        ahead: RoutedAhead | None,
        apply: Callable[[Plan], tuple[Published, ...]],
    ) -> SettleReply:
        """Settle and publish, or say why not. The caller replaces the reply's durability."""
        bad = stale(self._queue, self._settlements, self._now)
        if bad:
            return self._first_reply() or SettleReply(abort(self._settlements, bad), (), _NOT_YET)
        plan = self._plan(publish, ahead)
        outcomes = settle(self._queue, self._settlements, self._now, self._core.options.jitter)
        published = apply(plan)
        if self._id is not None:
            reply = encode_reply(outcomes, published)
            names = (self._tenant.name, self._queue.name)
            end = self._core.log.next_offset
            self._core.dedup.remember_settle(*names, self._id, reply, self._now, end)
        return SettleReply(outcomes, published, _NOT_YET)

    def _first_reply(self) -> SettleReply | None:
        """The answer to this very call, if it was carried out before."""
        if self._id is None:
            return None
        kept = self._core.dedup.find_settle(
            self._tenant.name, self._queue.name, self._id, self._now
        )
        return None if kept is None else decode_reply(kept, self._settlements, _NOT_YET)

    def _plan(self, publish: Sequence[Outgoing], ahead: RoutedAhead | None) -> Plan:
        """What is published, refused before anything is settled."""
        check_topics(self._checked, self._tenant.topics)
        plan = Plan(self._core, self._tenant, self._now)
        for outgoing in publish:
            plan.add(outgoing, ahead)
        plan.check_depth(self._queue, leaving(self._queue, self._settlements, self._now))
        return plan
