"""The HTTP server: the broker's verbs for programs in any language.

``app`` is the ASGI application, ``routing`` the route table, ``native`` the door of Penstock's
own HTTP interface, ``access`` authentication and authorization, ``serve`` the process around it.
Its packages come with the extra ``server``.
"""

from __future__ import annotations

from penstock.extras import require

require("server", "prometheus_client", "jwt", "cryptography")
