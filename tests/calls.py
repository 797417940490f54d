"""How much work something is, counted in calls of functions: the same on a machine that is busy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["calls_of"]


def calls_of(act: Callable[[], object]) -> list[str]:
    """The names of the functions that ``act`` calls, of Python and of C, in order."""
    called: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            called.append(frame.f_code.co_qualname)
        elif event == "c_call":
            called.append(argument.__qualname__)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    # The act itself, and the end of noting.
    return called[1:-1]
