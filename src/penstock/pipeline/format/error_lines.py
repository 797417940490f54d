"""Errors of the format are one line: what is wrong, and what to do.

Spark shows the text of an exception from its Python processes with its traceback, which for an
error of Penstock is noise in front of that line. The process ends after the error, so its own
environment can ask Spark to leave the traceback out. Bugs keep theirs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import wraps
from typing import Final, ParamSpec, TypeVar, cast

from pyspark.errors import PySparkException

from penstock.errors import BadInput, PenstockError, PipelineError

__all__ = ["one_line", "without_spark"]

P = ParamSpec("P")
R = TypeVar("R")

#: Set by Spark in its Python processes, and never in a driver.
_RUNTIME: Final = "SPARK_PYTHON_RUNTIME"
#: An error of Penstock in the text of one of Spark.
_OURS: Final = re.compile(r"penstock\.errors\.\w+\.(\w+): (.+)")
#: What Spark sets for ``spark.sql.execution.pyspark.udf.hideTraceback.enabled``.
_HIDE: Final = "SPARK_HIDE_TRACEBACK"


def one_line(method: Callable[P, R]) -> Callable[P, R]:
    """Let Spark show an error of Penstock as one line, from a method or its iterator."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = method(*args, **kwargs)
        except PenstockError:
            hide_traceback()
            raise
        if isinstance(result, Iterator):
            return cast("R", _iterated(result))
        return result

    return call


@contextmanager
def without_spark() -> Iterator[None]:
    """Raise an error of Penstock that ended a task as itself, not as Spark's error about it."""
    try:
        yield
    except PySparkException as error:
        found = _OURS.search(str(error))
        if found is None:
            raise
        raise (BadInput if found[1] == "BadInput" else PipelineError)(found[2]) from error


def _iterated(items: Iterator[R]) -> Iterator[R]:
    try:
        yield from items
    except PenstockError:
        hide_traceback()
        raise


def hide_traceback(environment: MutableMapping[str, str] = os.environ) -> None:
    """Ask Spark to leave out the traceback of the error that ends this process."""
    if _RUNTIME in environment:
        environment[_HIDE] = "1"
