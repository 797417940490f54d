"""Doors: other APIs on this server, one folder each, switched on by the setting ``door``.

A door is imported only if it is switched on, and raises ``MissingExtra`` if its packages are not
installed. The native door is always on: ``server.native``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.errors import BadSetting
from penstock.model.limits import shown

if TYPE_CHECKING:
    from penstock.server.doors.door import Door
    from penstock.server.service import Service
    from penstock.settings import Settings

__all__ = ["DOORS", "Opener", "load_doors"]

#: Creates a door. It neither listens nor awaits: that is the business of ``Door.start``.
Opener: TypeAlias = "Callable[[Service, Settings], Door]"

#: Door to "module:function".
DOORS: Final[dict[str, str]] = {
    "codeq": "penstock.server.doors.codeq:open_door",
    "mq": "penstock.server.doors.mq:open_door",
    "queue-ti": "penstock.server.doors.queue_ti:open_door",
    "sqs": "penstock.server.doors.sqs.door:open_door",
}


def load_doors(names: str | None) -> tuple[Opener, ...]:
    """The openers of doors, in a list with commas; raises ``BadSetting`` and ``MissingExtra``."""
    wanted = [name.strip() for name in (names or "").split(",")]
    return tuple(_load(name) for name in dict.fromkeys(wanted) if name)


def _load(name: str) -> Opener:
    target = DOORS.get(name)
    if target is None:
        known = ", ".join(sorted(DOORS))
        raise BadSetting(
            f"There is no door {shown(name)}. The doors are {known}; the native door is always on.",
            field="door",
        )
    module, _, function = target.partition(":")
    opener: Opener = getattr(import_module(module), function)
    return opener
