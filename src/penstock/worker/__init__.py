"""Workers: functions that handle the deliveries of queues.

::

    app ─▶ registration ─▶ consumption ─▶ readers ─▶ middleware ─▶ handler ─▶ settled

A worker uses only the public verbs, so it runs on a server and on a store in its own process.
docs/workers.md says how to write one.
"""

from __future__ import annotations

from penstock.model.settling_exceptions import Reject, Retry
from penstock.worker.app import App
from penstock.worker.blocking_task import BlockingTask, BlockingTaskHandle
from penstock.worker.context import Context
from penstock.worker.handling import Handled
from penstock.worker.middleware import Middleware, Next, Timing
from penstock.worker.task import Task, TaskHandle, TaskOptions

__all__ = [
    "App",
    "BlockingTask",
    "BlockingTaskHandle",
    "Context",
    "Handled",
    "Middleware",
    "Next",
    "Reject",
    "Retry",
    "Task",
    "TaskHandle",
    "TaskOptions",
    "Timing",
]
