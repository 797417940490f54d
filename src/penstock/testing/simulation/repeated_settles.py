"""A settle with publish that is sent again has to be answered as the first time (P4)."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.delivery import Receipt, Settlement, SettleReply
from penstock.model.message import Outgoing
from penstock.storage.repetition import REPEAT_WINDOW_MS, settle_id
from penstock.testing.simulation.program import WORK

__all__ = ["SentSettle"]


class SentSettle:
    """A settle as it was sent, and what is known of its answer."""

    def __init__(
        self,
        tenant: str,
        queue: str,
        places: list[tuple[str, str, Receipt]],
        settlements: Sequence[Settlement],
    ) -> None:
        self.tenant = tenant
        self.queue = queue
        self.places = places
        self.settlements = settlements
        self.outgoing: list[Outgoing] = []
        #: The number in the history of what it publishes, if that is judged.
        self.publish_call: int | None = None
        #: Whether another call is recognised by the same id, so that an answer may be to that one.
        self.is_ambiguous = False
        #: What was answered when it was carried out. None: nobody was told that it was.
        self.reply: SettleReply | None = None
        self._carried_out = False
        #: When it was sent, in the order of sending.
        self.sent_at: list[int] = []
        id_ = settle_id(settlements)
        #: What an engine recognises it by; None if it may be carried out twice.
        self.key = None if id_ is None else (tenant, queue, id_)

    def answered(self, reply: SettleReply, now: int) -> list[str]:
        """Take an answer; returns what is wrong with it."""
        name = f"a settle with publish of {self.queue!r}"
        carried_out = all(outcome.ok for outcome in reply.outcomes)
        if carried_out and not reply.repeated:
            # The answer to a repetition may overtake that to the first call.
            if self._carried_out:
                return [f"P4: {name} was carried out twice"]
            self._carried_out = True
        if self.reply is None:
            if carried_out:
                self.reply = reply
            return []
        if carried_out:
            if _plain(reply) == _plain(self.reply):
                return []
            return [f"P4: {name} was answered {_plain(self.reply)}, then {_plain(reply)}"]
        if self._is_remembered(now):
            return [f"P4: {name} was carried out, and then answered {reply.outcomes}"]
        return []

    def was_not_done(self, now: int) -> bool:
        """Whether an answer that it is not carried out means that it never was."""
        return self.reply is None and (len(self.sent_at) == 1 or self._is_remembered(now))

    def _is_remembered(self, now: int) -> bool:
        """Whether an engine that has carried it out has to know that."""
        # Other queues may have been deleted meanwhile.
        return self.queue == WORK and now < self.sent_at[0] + REPEAT_WINDOW_MS


def _plain(reply: SettleReply) -> tuple[object, ...]:
    outcomes = [(item.receipt, item.verdict, item.state, item.until) for item in reply.outcomes]
    published = [(item.id, item.offset, item.duplicate, item.replaced) for item in reply.published]
    return outcomes, published
