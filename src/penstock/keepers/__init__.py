"""Keepers: the background duties of a store, one per module.

No law of delivery depends on them: claims apply the passage of time themselves. Without keepers
a store only keeps more than it has to, and a queue that starts in the past stays behind.
"""

from __future__ import annotations

from penstock.keepers.catch_up import CatchUp
from penstock.keepers.inbox import InboxFiles
from penstock.keepers.keeper import Keeper, Pass
from penstock.keepers.supervisor import Keepers
from penstock.keepers.sweep import Sweep
from penstock.keepers.webhooks import WebhookCalls

__all__ = ["CatchUp", "InboxFiles", "Keeper", "Keepers", "Pass", "Sweep", "WebhookCalls"]
