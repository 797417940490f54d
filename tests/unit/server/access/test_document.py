"""docs/access.md says what every route needs, and says it right."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.server.health import ROUTES as HEALTH
from penstock.server.native import ROUTES as NATIVE
from penstock.server.routing import ANY_NAME, Need

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "access.md"


def in_words(need: Need) -> str:
    if need.action is None:
        return "nothing"
    if need.parameter is None:
        return f"`{need.action}:*`"
    action = f"`{need.action}` or `read`" if need.or_read else f"`{need.action}`"
    if need.parameter == ANY_NAME:
        return f"{action} on some name"
    return f"{action} on the {need.parameter}"


def test_every_route_is_in_the_table_with_its_need() -> None:
    documented = {
        call: needs
        for needs, calls in re.findall(
            r"^\| (.+?) \| (`[A-Z]+ /.*) \|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE
        )
        for call in re.findall(r"`([A-Z]+ /[^`]*)`", calls)
    }
    assert documented == {
        f"{route.method} {route.path}": in_words(route.need) for route in (*NATIVE, *HEALTH)
    }
