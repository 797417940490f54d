"""How far a stream of the log is behind, for the progress events of its query.

Spark's Python sources have no metrics of their own, so the lag is part of the position that the
source reports as ``latestOffset``. ``penstock.pipeline.lag_of`` reads it from a progress event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from penstock.model.clock import Clock
from penstock.model.limits import MAX_PAGE
from penstock.pipeline.remote import Remote

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import SourceProgress, StreamingQueryProgress

__all__ = ["LAG", "Lag", "lag_of", "measure"]

#: The key of the lag in a reported position.
LAG: Final = "lag"


class Lag(Struct, frozen=True):
    """What is in the log after the end of a micro-batch."""

    entries: int
    """Exact up to a thousand; above, estimated from the next thousand."""
    bytes: int
    """Payload bytes, estimated in the same way."""
    oldest_ms: int
    """The age of the oldest of these entries; 0 if there is none."""

    def to_report(self) -> dict[str, Any]:
        """The lag as a part of a position."""
        return {LAG: {"entries": self.entries, "bytes": self.bytes, "oldest_ms": self.oldest_ms}}


class _Reported(Struct):
    lag: Lag | None = None


def lag_of(progress: StreamingQueryProgress | SourceProgress | None) -> Lag | None:
    """The lag in a progress event of a query or of one source; None if it has none.

    Of a query with several sources it is that of the first one that reports a lag.
    """
    if progress is None:
        return None
    sources = progress.sources if hasattr(progress, "sources") else [progress]
    for source in sources:
        try:
            lag = msgspec.json.decode(source.latestOffset or "{}", type=_Reported).lag
        except msgspec.MsgspecError:
            continue  # A source of another kind.
        if lag is not None:
            return lag
    return None


def measure(remote: Remote, position: int, end: int, clock: Clock) -> Lag:
    """The lag of a stream at ``position``, with one request."""
    if position >= end:
        return Lag(0, 0, 0)
    page = remote.ask(lambda q: q.read_log(position, limit=MAX_PAGE))
    messages = [one.message for one in page.entries if one.message.offset < end]
    if not messages:
        return Lag(0, 0, 0)
    read = min(int(page.next_offset), end)
    # Offsets have gaps in some stores, so the entries beyond the page are in proportion.
    share = (end - position) / (read - position)
    size = sum(message.size for message in messages)
    oldest_ms = max(0, clock.now() - messages[0].published_at)
    return Lag(round(len(messages) * share), round(size * share), oldest_ms)
