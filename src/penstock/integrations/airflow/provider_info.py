"""What Airflow reads to find the provider. It is read by every command, so nothing is imported."""

from __future__ import annotations

from typing import Any

__all__ = ["get_provider_info"]

_PACKAGE = "penstock.integrations.airflow"


def get_provider_info() -> dict[str, Any]:
    """The parts of the provider, in the form of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "penstock",
        "name": "Penstock",
        "description": "A durable message queue whose messages start DAGs.",
        "triggers": [{"integration-name": "Penstock", "python-modules": [f"{_PACKAGE}.trigger"]}],
        "queues": [f"{_PACKAGE}.provider.PenstockMessageQueueProvider"],
    }
