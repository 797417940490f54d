"""The MQ door: six routes for queues of raw bytes (docs/doors/mq.md)."""

from __future__ import annotations

from penstock.server.doors.mq.door import open_door

__all__ = ["open_door"]
