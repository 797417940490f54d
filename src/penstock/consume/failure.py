"""An exception as the error of a delivery: short, valid text, the type first.

It is stored with the delivery and shown with its dead letter, so it starts with the error
itself; the traceback follows.
"""

from __future__ import annotations

import traceback
from itertools import dropwhile
from pathlib import Path
from typing import Final

from penstock.model.limits import cut_error

__all__ = ["describe"]

_OWN_FILES: Final = str(Path(__file__).parents[1])


def describe(error: BaseException, *, frames: int = 0) -> str:
    """``Type: message``, and the innermost ``frames`` of its traceback.

    The frames of Penstock that called the program are left out.
    """
    kind = type(error)
    text = "".join(traceback.format_exception_only(error)).strip()
    qualified = f"{kind.__module__}.{kind.__qualname__}"
    if text.startswith(qualified):
        text = kind.__name__ + text[len(qualified) :]
    if frames and error.__traceback__ is not None:
        stack = traceback.extract_tb(error.__traceback__)
        theirs = list(dropwhile(lambda frame: frame.filename.startswith(_OWN_FILES), stack))
        lines = traceback.format_list((theirs or stack)[-frames:])
        text = f"{text}\n{''.join(lines).rstrip()}"
    return cut_error(text)
