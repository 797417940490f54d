"""The settings of a server that its clients and jobs depend on."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.model.queue import Routing

__all__ = ["NEAR", "ServerSettings"]

#: Log entries. With ``routing = "pipeline"``, queues that are further behind than this are left to
#: Spark; for fewer entries it would take longer to start than the server to finish.
NEAR: Final = 20_000


class ServerSettings(Struct, frozen=True, kw_only=True):
    """How the server treats its store, beyond the policies of queues and topics."""

    routing: Routing
    """Which component fills queues that are far behind: the server, or the pipeline."""
    log_retention_ms: int
    """How long entries of the log are kept at least."""
    archive: bool
    """Whether entries are kept until a copy of them is verified."""
