"""The native door: Penstock's own HTTP interface, one module per family of paths."""

from __future__ import annotations

from penstock.server.native.claims import ROUTES as CLAIMS
from penstock.server.native.consumers import ROUTES as CONSUMERS
from penstock.server.native.credential import ROUTES as CREDENTIAL
from penstock.server.native.deliveries import ROUTES as DELIVERIES
from penstock.server.native.failures import ROUTES as FAILURES
from penstock.server.native.filters import ROUTES as FILTERS
from penstock.server.native.keys import ROUTES as KEYS
from penstock.server.native.live import ROUTES as LIVE
from penstock.server.native.log import ROUTES as LOG
from penstock.server.native.messages import ROUTES as MESSAGES
from penstock.server.native.own_entries import ROUTES as OWN_ENTRIES
from penstock.server.native.pipeline import ROUTES as PIPELINE
from penstock.server.native.publish import ROUTES as PUBLISH
from penstock.server.native.queues import ROUTES as QUEUES
from penstock.server.native.settlements import ROUTES as SETTLEMENTS
from penstock.server.native.stream import ROUTES as STREAM
from penstock.server.native.topics import ROUTES as TOPICS
from penstock.server.native.webhooks import ROUTES as WEBHOOKS
from penstock.server.native.writes import ROUTES as WRITES

__all__ = ["ROUTES"]

ROUTES = (
    *PUBLISH,
    *CLAIMS,
    *SETTLEMENTS,
    *STREAM,
    *QUEUES,
    *DELIVERIES,
    *FAILURES,
    *LIVE,
    *CONSUMERS,
    *TOPICS,
    *WEBHOOKS,
    *WRITES,
    *MESSAGES,
    *LOG,
    *OWN_ENTRIES,
    *FILTERS,
    *PIPELINE,
    *KEYS,
    *CREDENTIAL,
)
