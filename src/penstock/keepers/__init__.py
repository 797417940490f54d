"""Keepers: what has to happen although nobody calls, one duty a file.

No law of delivery depends on them: claims let time take effect by themselves. Without keepers
a store only keeps more than it has to, and a queue that starts in the past stays behind.
"""

from __future__ import annotations

from penstock.keepers.catch_up import NEAR, CatchUp
from penstock.keepers.keeper import Keeper, Pass
from penstock.keepers.supervisor import Keepers
from penstock.keepers.sweep import Sweep

__all__ = ["NEAR", "CatchUp", "Keeper", "Keepers", "Pass", "Sweep"]
