"""Access: who is calling, for which tenant, and what they may do with which names.

``grants`` and ``credential`` describe permissions, ``keys`` and ``tokens`` prove them, ``access``
maps a request's Authorization header to a credential, ``browsers`` rejects cross-site requests,
``binding`` and ``tls`` decide which addresses a server may listen on and how.
Each route declares the grant that it needs.
"""

from __future__ import annotations

from penstock.server.access.access import Access
from penstock.server.access.binding import binding_warnings, check_binding, is_loopback
from penstock.server.access.browsers import Browsers
from penstock.server.access.credential import ANYBODY, DEFAULT_TENANT, Credential
from penstock.server.access.grants import (
    ALL_GRANTS,
    EVERYTHING,
    Action,
    Grant,
    parse_grant,
    parse_grants,
)
from penstock.server.access.keys import KeyInfo, Keys, NewKey
from penstock.server.access.opening import open_access
from penstock.server.access.tls import Tls, check_tls, tls_context
from penstock.server.access.tokens import Tokens

__all__ = [
    "ALL_GRANTS",
    "ANYBODY",
    "DEFAULT_TENANT",
    "EVERYTHING",
    "Access",
    "Action",
    "Browsers",
    "Credential",
    "Grant",
    "KeyInfo",
    "Keys",
    "NewKey",
    "Tls",
    "Tokens",
    "binding_warnings",
    "check_binding",
    "check_tls",
    "is_loopback",
    "open_access",
    "parse_grant",
    "parse_grants",
    "tls_context",
]
