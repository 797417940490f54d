"""The codeQ door: tasks, workers and results below ``/v1/codeq`` (docs/doors/codeq.md)."""

from __future__ import annotations

from penstock.server.doors.codeq.door import open_door

__all__ = ["open_door"]
