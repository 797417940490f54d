"""Telling: how the rooms reach the engine's listener, at most once a verb and queue.

A *turn* is what runs between two awaits, counted by the beginnings of verbs. Whoever was told
in this turn has had no chance to claim since, so telling it again would say nothing new: a
publish of a thousand messages is told once, at the price of a comparison a message. The
next verb, or the next slice of a bulk verb that another verb came between, tells again.
"""

from __future__ import annotations

from penstock.storage.contract import Listener

__all__ = ["Teller"]


class Teller:
    """The listener, and the number of the verb that is running."""

    __slots__ = ("listener", "turn")

    def __init__(self) -> None:
        self.listener = Listener()
        self.turn = 1
