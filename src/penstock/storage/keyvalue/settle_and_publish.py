"""Settle with publish: settlements and messages in one commit, or neither (S3).

A repeated call gets the first reply again and stores nothing (P4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from penstock.model.delivery import Extend, Outcome, Receipt, Settlement, SettleReply
from penstock.model.message import Durability, Message, Outgoing
from penstock.storage.keyvalue.core import Core
from penstock.storage.keyvalue.dead_letter_copies import append_copies
from penstock.storage.keyvalue.publish import Plan
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.routed_ahead import RoutedAhead
from penstock.storage.keyvalue.settle import abort, check_copies, leaving, settle, stale
from penstock.storage.keyvalue.tenant import Tenant
from penstock.storage.repetition import decode_reply, encode_reply, settle_id
from penstock.storage.topic_checks import CheckedBy, check_topics

__all__ = ["SettleAndPublish"]

#: Placeholder in a reply until the commit returns its durability.
_NOT_YET: Final[Durability] = "none"


class SettleAndPublish:
    """One call, in steps. No other verb runs between them, so the queue does not change."""

    def __init__(
        self,
        core: Core,
        tenant: Tenant,
        settlements: Sequence[Settlement],
        now: int,
        checked: CheckedBy,
    ) -> None:
        self._core = core
        self._tenant = tenant
        # A copy: the caller may change its list between two steps.
        self._settlements = tuple(settlements)
        self._now = now
        self._checked = checked
        self._id = settle_id(self._settlements)
        self._plan = Plan(core, tenant, now)
        self._outcomes: list[Outcome] = []
        #: The reply, set by the last step. The caller fills in its durability.
        self.reply: SettleReply

    def replaced(self, topic: str, key: str) -> Message | None:
        """The message that a new message with this key would currently replace."""
        return self._plan.waiting_keys.replaced(topic, key)

    @property
    def is_half_done(self) -> bool:
        """Whether anything was changed: an error would leave the call half done."""
        return bool(self._outcomes) or self._plan.is_half_done

    def carry_out(
        self, queue: Queue, publish: Sequence[Outgoing], ahead: RoutedAhead | None
    ) -> Iterator[None]:
        """The steps that settle and publish, or abort."""
        runs_now = len(self._settlements) < self._core.step_size
        self._plan.take(publish, ahead, runs_now=runs_now)
        return self._steps(queue)

    def _steps(self, queue: Queue) -> Iterator[None]:
        settlements, now, step = self._settlements, self._now, self._core.step_size
        bad: set[int] = set()
        yield from stale(queue, settlements, now, step, bad)
        if bad:
            first = self._first_reply(queue)
            self.reply = first or SettleReply(abort(settlements, bad), (), _NOT_YET)
            return
        # Refuse the call, if necessary, before anything is settled.
        yield from check_copies(queue, settlements, now, step)
        check_topics(self._checked, self._tenant.topics)
        plan, outcomes = self._plan, self._outcomes
        gone: set[Receipt] = set()
        yield from leaving(queue, settlements, now, step, gone)
        returned = {item.receipt for item in settlements if not isinstance(item, Extend)}
        plan.waiting_keys.returning = returned - gone
        positions = queue.positions
        if positions is not None:
            # Before the plan reserves offsets: what is returned precedes what is published.
            positions.draw_ahead(len(returned - gone))
        try:
            yield from plan.decide()
            yield from plan.check_depth(queue, len(gone))
            jitter = self._core.options.jitter
            yield from settle(queue, settlements, now, jitter, step, outcomes, limited=False)
        finally:
            if positions is not None:
                positions.drop_drawn()
        yield from plan.apply()
        yield from append_copies(self._core)
        self.reply = SettleReply(tuple(outcomes), plan.replies, _NOT_YET)
        if self._id is not None:
            kept = encode_reply(outcomes, plan.replies)
            names = (self._tenant.name, queue.name)
            end = self._core.log.next_offset
            self._core.dedup.remember_settle(*names, self._id, kept, now, end)

    def _first_reply(self, queue: Queue) -> SettleReply | None:
        """The reply to this call, if it was already executed."""
        if self._id is None:
            return None
        kept = self._core.dedup.find_settle(self._tenant.name, queue.name, self._id, self._now)
        return None if kept is None else decode_reply(kept, self._settlements, _NOT_YET)
