"""The half of an adapter that a view does not have: what writes."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import NotWriter
from penstock.model.message import Durability
from penstock.storage.keyvalue.adapters import KeyRange, Mark, Writes

__all__ = ["ReadOnly"]


class ReadOnly:
    """A view of a store that another process may write to."""

    persistent = True
    inline = False
    unsynced: Durability = "memory"
    has_marks = False
    commit_interval_s = 0.0
    name_of_store: str

    def write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> None:  # noqa: ARG002
        raise NotWriter(f"This process only reads {self.name_of_store}.")

    def try_write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> bool:
        self.write(writes, removed, sync)
        return True

    def check(self) -> None:
        """A view stays valid for as long as it is open."""

    def space(self) -> tuple[int, int] | None:
        return None

    def mark(self, mark: Mark) -> None:
        """Does nothing: only the writer marks commits."""

    def read_mark(self) -> Mark | None:
        return None
