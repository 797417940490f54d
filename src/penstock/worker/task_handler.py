"""The handler of a task: its arguments are the fields of a JSON object, by parameter name.

``bind`` checks a call against the signature when it is sent, so a producer learns of a wrong
call immediately. A delivery whose arguments do not fit, for example one from another program,
is rejected: the payload does not change, so a retry cannot help.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import MsgspecError, Raw

from penstock.errors import BadInput
from penstock.model.payload import to_payload
from penstock.model.settling_exceptions import Reject
from penstock.worker.context import Context
from penstock.worker.handler import (
    Function,
    Handler,
    Supply,
    given,
    parameter_types,
    return_type,
)
from penstock.worker.payload import DecodeTyped, is_msgpack, to_decode_typed

__all__ = ["TaskHandler", "encode_json"]

_json_fields: Final = msgspec.json.Decoder(dict[str, Raw])
_msgpack_fields: Final = msgspec.msgpack.Decoder(dict[str, Raw])


class TaskHandler(Handler):
    """A function that is called with the arguments of a message."""

    def __init__(
        self, function: Function, name: str, names: Mapping[str, object] | None = None
    ) -> None:
        self._decoders: dict[str, DecodeTyped] = {}
        self._given: dict[str, Supply] = {}
        super().__init__(function, names)
        self.name = name
        self._decode_result = _result_decoder(return_type(function, names or {}))

    @property
    def needs_arguments(self) -> bool:
        """Whether a call without arguments is refused."""
        return any(
            parameter.default is parameter.empty
            for parameter in self._signature.parameters.values()
        )

    def bind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """The arguments of a call by name; ``BadInput`` if they do not fit the signature."""
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise BadInput(
                f"Task {self.name!r} cannot be called like this: {error}.", field="arguments"
            ) from error

    def decode_result(self, raw: bytes | None) -> Any:
        """The value that the task returned."""
        return None if raw is None else self._decode_result(raw, False)

    def _read_signature(self, names: Mapping[str, object]) -> None:
        types = parameter_types(self.function, self.name, names)
        signature = inspect.signature(self.function)
        for parameter in signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise BadInput(
                    f"{self.name} has the parameter {parameter}; the arguments of a task are "
                    "stored by name, so it needs named parameters.",
                    field="handler",
                )
            annotation = types.get(parameter.name, parameter.annotation)
            supply = given(annotation)
            if supply is not None:
                self._given[parameter.name] = supply
                continue
            if annotation is parameter.empty:
                annotation = Any
            self._decoders[parameter.name] = to_decode_typed(annotation)
        own = [item for name, item in signature.parameters.items() if name in self._decoders]
        self._signature = signature.replace(parameters=own)
        self._positional_only = [
            item for item in signature.parameters.values() if item.kind is item.POSITIONAL_ONLY
        ]

    def _arguments(self, context: Context) -> tuple[Sequence[object], Mapping[str, object]]:
        values = self._decode(context)
        values |= {name: supply(context) for name, supply in self._given.items()}
        positional = [values.pop(item.name, item.default) for item in self._positional_only]
        return positional, values

    def _decode(self, context: Context) -> dict[str, object]:
        delivery = context.delivery
        msgpack = is_msgpack(delivery)
        try:
            fields = (_msgpack_fields if msgpack else _json_fields).decode(delivery.payload)
        except (ValueError, MsgspecError, RecursionError) as error:
            raise Reject(f"The arguments of task {self.name!r} cannot be read: {error}") from error
        for name, parameter in self._signature.parameters.items():
            if name not in fields and parameter.default is parameter.empty:
                raise Reject(f"Task {self.name!r} needs the argument {name!r}.")
        values: dict[str, object] = {}
        for name, raw in fields.items():
            decode = self._decoders.get(name)
            if decode is None:
                raise Reject(f"Task {self.name!r} has no argument {name!r}.")
            try:
                values[name] = decode(raw, msgpack)
            except (ValueError, MsgspecError, RecursionError) as error:
                raise Reject(
                    f"The argument {name!r} of task {self.name!r} cannot be read: {error}"
                ) from error
        return values


def encode_json(value: object) -> bytes | None:
    """The result of a task: JSON, text and bytes too, so that its type can be restored."""
    # A list keeps ``encode`` from storing text and bytes unchanged.
    return None if value is None else to_payload([value])[0][1:-1]


def _result_decoder(annotation: object) -> DecodeTyped:
    try:
        return to_decode_typed(annotation)
    except BadInput:
        return to_decode_typed(Any)
