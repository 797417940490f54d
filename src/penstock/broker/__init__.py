"""The broker: decisions that need no engine. Validation, limits, waiting, explanations.

Everything a program calls goes through it, embedded or behind a server. It knows the
storage contract and never an engine.
"""

from __future__ import annotations

from penstock.broker.broker import Background, Broker
from penstock.broker.scope import BrokerOptions

__all__ = ["Background", "Broker", "BrokerOptions"]
