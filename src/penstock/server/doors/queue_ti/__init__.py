"""The queue-ti door: its HTTP interface and its gRPC service (docs/doors/queue-ti.md)."""

from __future__ import annotations

from penstock.server.doors.queue_ti.door import open_door

__all__ = ["open_door"]
