"""``penstock verify``: checks which laws a store keeps, as far as its own verbs can show.

It only reads, so it works on a store that no other process has open and on a busy one,
embedded or over HTTP. A suspect is checked again before it is reported as a violation, so
mere movement in a busy store is never reported.

There is one module per law or family of laws; docs/verify.md says what each check means and
what it cannot detect.
"""

from __future__ import annotations

from penstock.verify.inspection import Store
from penstock.verify.report import Check, Report, Violation
from penstock.verify.run import verify

__all__ = ["Check", "Report", "Store", "Violation", "verify"]
