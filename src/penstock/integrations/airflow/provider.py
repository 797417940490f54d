"""The provider of ``MessageQueueTrigger(scheme="penstock", …)``."""

from __future__ import annotations

from typing import Final

from penstock.extras import importing
from penstock.integrations.airflow.trigger import PenstockTrigger

with importing("airflow", "airflow"):
    from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider

__all__ = ["SCHEME", "PenstockMessageQueueProvider"]

SCHEME: Final = "penstock"


class PenstockMessageQueueProvider(BaseMessageQueueProvider):
    """Chosen by its scheme only; Airflow has deprecated the choice by the URI of a queue."""

    scheme = SCHEME

    def trigger_class(self) -> type[PenstockTrigger]:
        """The trigger, whose arguments are those of ``MessageQueueTrigger``."""
        return PenstockTrigger

    def queue_matches(self, queue: str) -> bool:
        """No: a URI has no place for a connection or a filter."""
        return False
