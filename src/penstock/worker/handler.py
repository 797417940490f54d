"""A handler: a function, and how its parameters are filled from a delivery.

A parameter annotated ``Context``, ``Lease``, ``Delivery`` or ``Message`` gets that object. One
other parameter gets the payload, decoded by its annotation (``worker/payload.py``). Parameters
with a default keep it. A signature that does not fit is refused when the function is
registered (E1), not when the first message arrives.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Final, TypeAlias

from msgspec import MsgspecError

from penstock.consume.lease import Lease
from penstock.errors import BadInput
from penstock.model.delivery import Delivery
from penstock.model.message import Message
from penstock.model.settling_exceptions import Reject, SettlingException
from penstock.worker.context import Context
from penstock.worker.payload import Decode, to_decode
from penstock.worker.threads import Threads

__all__ = ["Function", "Handler", "Supply", "given", "parameter_types", "return_type"]

#: A plain function, or one that returns an awaitable.
Function: TypeAlias = Callable[..., object]
#: Supplies a parameter from the context of a handling.
Supply: TypeAlias = Callable[[Context], object]

_GIVEN: Final[dict[object, Supply]] = {
    Context: lambda context: context,
    Lease: lambda context: context.lease,
    Delivery: lambda context: context.delivery,
    Message: lambda context: context.message,
}


class Handler:
    """A function that handles deliveries."""

    def __init__(self, function: Function, names: Mapping[str, object] | None = None) -> None:
        """``names`` are the caller's local names, which annotations may use."""
        self.function = function
        self.name: str = getattr(function, "__qualname__", None) or repr(function)
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004  (an object may have an async one)
        )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise BadInput(f"{self.name} is a generator; a handler returns once.", field="handler")
        self._positional: list[Supply] = []
        self._keywords: dict[str, Supply] = {}
        self._read_signature(names or {})

    async def call(self, context: Context, threads: Threads) -> object:
        """Call the function, in a thread if it is not async.

        A ``Reject`` or ``Retry`` that the function returns is raised. ``sys.exit`` is an error of
        the function: it must not end the worker.
        """
        positional, keywords = self._arguments(context)
        bound = partial(self.function, *positional, **keywords)
        try:
            value = bound() if self.is_async else await _in_thread(bound, context, threads)
            value = await value if inspect.isawaitable(value) else value
        except SystemExit as error:
            raise RuntimeError(f"The handler called sys.exit({error.code!r}).") from error
        if isinstance(value, SettlingException):
            raise value
        return value

    def _arguments(self, context: Context) -> tuple[Sequence[object], Mapping[str, object]]:
        """The positional and the named arguments of a call."""
        return (
            [supply(context) for supply in self._positional],
            {name: supply(context) for name, supply in self._keywords.items()},
        )

    def _read_signature(self, names: Mapping[str, object]) -> None:
        hints = parameter_types(self.function, self.name, names)
        payload: str | None = None
        for parameter in inspect.signature(self.function).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if parameter.default is not parameter.empty:
                continue
            annotation = hints.get(parameter.name, parameter.annotation)
            supply = given(annotation)
            if supply is None:
                if payload is not None:
                    raise BadInput(
                        f"{self.name} has two parameters for the payload, {payload!r} and "
                        f"{parameter.name!r}; annotate one as Context, Lease, Delivery or Message, "
                        "or give it a default.",
                        field="handler",
                    )
                payload = parameter.name
                supply = partial(_read, to_decode(annotation))
            if parameter.kind is parameter.POSITIONAL_ONLY:
                self._positional.append(supply)
            else:
                self._keywords[parameter.name] = supply


def given(annotation: object) -> Supply | None:
    """What supplies a parameter with this annotation; None if it comes from the payload."""
    return _GIVEN.get(annotation) if isinstance(annotation, type) else None


def _read(decode: Decode, context: Context) -> object:
    try:
        return decode(context.delivery)
    except (ValueError, MsgspecError, RecursionError) as error:
        # The payload does not change, so a retry cannot help.
        raise Reject(f"The payload cannot be read: {error}") from error


async def _in_thread(bound: Callable[[], object], context: Context, threads: Threads) -> object:
    future = threads.submit(bound)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if future.running():
            threads.abandon(future)
            if not context.lost:
                # The thread cannot be stopped. If the delivery were released, another consumer
                # would work on it at the same time.
                context.lease.let_lapse()
        raise


def parameter_types(
    function: Function, name: str, names: Mapping[str, object]
) -> dict[str, object]:
    """The annotations of the parameters as types."""
    inner = _unwrapped(function)
    annotations = {k: v for k, v in inspect.get_annotations(inner).items() if k != "return"}
    try:
        return _resolved(inner, annotations, names)
    except (NameError, TypeError) as error:
        raise BadInput(
            f"The annotations of {name} cannot be read: {error}; the types must be available at "
            "run time.",
            field="handler",
        ) from error


def return_type(function: Function, names: Mapping[str, object]) -> object:
    """The return annotation as a type; ``Any`` if there is none, or it cannot be resolved."""
    inner = _unwrapped(function)
    annotations = inspect.get_annotations(inner)
    if "return" not in annotations:
        return typing.Any
    try:
        return _resolved(inner, {"return": annotations["return"]}, names)["return"]
    except (NameError, TypeError):
        return typing.Any


def _unwrapped(function: Function) -> Function:
    inner = function.func if isinstance(function, partial) else function
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    unwrapped: Function = inspect.unwrap(inner)
    return unwrapped


def _resolved(
    inner: Function, annotations: dict[str, object], names: Mapping[str, object]
) -> dict[str, object]:
    known = getattr(inner, "__globals__", {})
    described = SimpleNamespace(__annotations__=annotations)
    try:
        return typing.get_type_hints(described, known, {}, include_extras=True)
    except NameError:
        # Types that are local to the function around the decorated one.
        return typing.get_type_hints(described, known, dict(names), include_extras=True)
