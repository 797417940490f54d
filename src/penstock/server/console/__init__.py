"""The web console: static files from the package, the same for every caller.

They reveal nothing about a store: the page reads everything from ``/v1``, under the caller's own
credential. There is no build step, no request to another host and no inline script, so the policy
of the page is strict. ``index.html`` names the other files by a hash of all of them, so browsers
may keep those for ever, and a new version of Penstock is a new set of files.
"""

from __future__ import annotations

from penstock.server.console.pages import ROUTES

__all__ = ["ROUTES"]
