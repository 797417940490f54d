"""The routes of the console.

Every path is relative to the page, so the console works behind a proxy that adds a prefix.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import UnknownRoute
from penstock.model.limits import shown
from penstock.server.call import Call
from penstock.server.console.files import Asset, assets, page
from penstock.server.replies import Plain
from penstock.server.routing import ANYONE, Empty, Route

__all__ = ["ROUTES"]

#: Styles of charts are set through the object model, which the policy does not restrict.
_POLICY: Final = (
    b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    b" object-src 'none'"
)
_SAFETY: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
#: The frame for reports, which contain texts of producers. It may run the scripts inside the page,
#: has an origin of its own, and loads nothing. Only the console may show it.
_FRAME: Final = "report_frame.html"
_FRAME_POLICY: Final = (
    b"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:;"
    b" base-uri 'none'; form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
)
_ALWAYS_ASK: Final = b"no-cache"
_FOR_EVER: Final = b"public, max-age=31536000, immutable"


async def redirect(call: Call, query: Empty, body: Empty) -> Plain:  # noqa: ARG001
    """The page has a slash at its end, since its paths are relative to it."""
    return Plain(
        308, headers=((b"location", b"console/"), (b"content-security-policy", _POLICY), *_SAFETY)
    )


async def index(call: Call, query: Empty, body: Empty) -> Plain:  # noqa: ARG001
    """The page."""
    return _reply(call, page(), _ALWAYS_ASK)


async def asset(call: Call, query: Empty, body: Empty) -> Plain:  # noqa: ARG001
    """Another file, of this version of Penstock."""
    version, name = call.parameters
    known = assets()
    found = known.by_name.get(name)
    if found is None or version != known.version:
        raise UnknownRoute(f"The console has no file {shown(name)}. Load the page again.")
    return _reply(call, found, _FOR_EVER, _FRAME_POLICY if name == _FRAME else _POLICY)


def _with(policy: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"content-security-policy", policy), *_SAFETY)


def _reply(call: Call, found: Asset, cached: bytes, policy: bytes = _POLICY) -> Plain:
    known = ((b"etag", found.tag), (b"cache-control", cached), *_with(policy))
    if found.tag in call.headers.get(b"if-none-match", b""):
        return Plain(304, headers=known)
    headers = ((b"vary", b"accept-encoding"), *known)
    if b"gzip" in call.headers.get(b"accept-encoding", b""):
        packed = ((b"content-encoding", b"gzip"), *headers)
        return Plain(200, found.compressed, found.content_type, packed)
    return Plain(200, found.body, found.content_type, headers)


ROUTES: Final = (
    Route(
        method="GET",
        path="/console",
        verb="console",
        summary="Leads to the console",
        need=ANYONE,
        handler=redirect,
        query=Empty,
        is_page=True,
        tag="console",
    ),
    Route(
        method="GET",
        path="/console/",
        verb="console",
        summary="The console",
        need=ANYONE,
        handler=index,
        query=Empty,
        is_page=True,
        tag="console",
    ),
    Route(
        method="GET",
        path="/console/{version}/{file}",
        verb="console",
        summary="A file of the console",
        need=ANYONE,
        handler=asset,
        query=Empty,
        is_page=True,
        tag="console",
    ),
)
