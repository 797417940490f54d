"""An exception as the error of a delivery: short, valid text, the type first.

It is stored with the delivery and shown with its dead letter, so it starts with the error
itself; the traceback follows.
"""

from __future__ import annotations

import traceback

from penstock.model.limits import cut_error

__all__ = ["describe"]


def describe(error: BaseException, *, frames: int = 0) -> str:
    """``Type: message``, and the innermost ``frames`` of its traceback."""
    kind = type(error)
    text = "".join(traceback.format_exception_only(error)).strip()
    qualified = f"{kind.__module__}.{kind.__qualname__}"
    if text.startswith(qualified):
        text = kind.__name__ + text[len(qualified) :]
    if frames and error.__traceback__ is not None:
        lines = traceback.format_tb(error.__traceback__, limit=-frames)
        text = f"{text}\n{''.join(lines).rstrip()}"
    return cut_error(text)
