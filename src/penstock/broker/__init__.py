"""The broker: decisions that need no engine. Validation, limits, explanations.

Everything a program calls goes through it, embedded or behind a server. It knows the
storage contract and never an engine.
"""

from __future__ import annotations

from penstock.broker.broker import Broker
from penstock.broker.opening import Opening, open  # noqa: A004
from penstock.broker.scope import BrokerOptions

__all__ = ["Broker", "BrokerOptions", "Opening", "open"]
