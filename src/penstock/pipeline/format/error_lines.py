"""Errors of the format begin with one line that says what is wrong; the traceback follows.

Spark shows the text of an exception from its Python processes, and that begins with the traceback.
It prints the context of an exception first, though. So an error gets a copy of itself without a
traceback as its context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from functools import wraps
from typing import ParamSpec, TypeVar, cast

from penstock.errors import PenstockError

__all__ = ["line_first"]

P = ParamSpec("P")
R = TypeVar("R")


def line_first(method: Callable[P, R]) -> Callable[P, R]:
    """Let errors of Penstock begin with a line, in a method and in the iterator it returns."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = method(*args, **kwargs)
        except PenstockError as error:
            raise _with_line(error)  # noqa: B904  (its context is the line)
        if isinstance(result, Iterator):
            return cast("R", _iterated(result))
        return result

    return call


def _iterated(items: Iterator[R]) -> Iterator[R]:
    try:
        yield from items
    except PenstockError as error:
        raise _with_line(error)  # noqa: B904


def _with_line(error: PenstockError) -> PenstockError:
    line = copy(error)
    line.__traceback__ = line.__cause__ = line.__context__ = None
    error.__cause__, error.__context__ = None, line
    error.__suppress_context__ = False
    return error
