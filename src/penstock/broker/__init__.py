"""The broker: validation, limits, waiting and explanations, above any engine.

Every call of a program goes through it, embedded or behind a server. It uses the storage
contract and never imports an engine.
"""

from __future__ import annotations

from penstock.broker.broker import Background, Broker
from penstock.broker.scope import BrokerOptions

__all__ = ["Background", "Broker", "BrokerOptions"]
