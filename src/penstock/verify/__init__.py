"""``penstock verify``: which laws the store keeps, as far as its own verbs can tell.

It asks the verbs that read and changes nothing, so it works on a store that nobody else has
open and on one that is busy, embedded or over HTTP. Whatever looks wrong is looked at again
before it is called a violation: a store at work is never accused of what is only movement.

Each law, or family of laws, has a file; docs/verify.md says what each check means and what
it cannot see.
"""

from __future__ import annotations

from penstock.verify.report import Check, Report, Violation
from penstock.verify.run import verify
from penstock.verify.store import Store

__all__ = ["Check", "Report", "Store", "Violation", "verify"]
