"""What every room of the broker stands on: an engine, the options, one tenant."""

from __future__ import annotations

from msgspec import Struct

from penstock.errors import BadInput
from penstock.filters import Filter, parse
from penstock.model.limits import check_name
from penstock.model.message import MessageId
from penstock.model.states import State
from penstock.storage.contract import Engine, EngineOptions

__all__ = ["BrokerOptions", "Scope", "check_count", "to_message_id", "to_state", "to_where"]


class BrokerOptions(Struct, frozen=True, kw_only=True):
    """What an operator may choose; the engine's own choices are inside."""

    engine: EngineOptions = EngineOptions()
    require_topics: bool = False
    """Publishing to a topic that was not registered is refused."""


class Scope:
    """One tenant of one engine (T1)."""

    def __init__(self, engine: Engine, options: BrokerOptions, tenant: str) -> None:
        self._engine = engine
        self._options = options
        self._limits = options.engine.limits
        self._clock = options.engine.clock
        self.tenant = check_name(tenant, "tenant")


def to_where(where: str | None) -> Filter | None:
    """The filter that a bulk verb selects by; None selects everything."""
    return None if where is None else parse(where)


def to_state(state: State | str) -> State:
    """The state, if there is one of that name."""
    try:
        return State(state)
    except ValueError as error:
        states = ", ".join(item.value for item in State)
        raise BadInput(f"state is {state!r}; it is one of {states}.", field="state") from error


def to_message_id(message_id: object) -> MessageId:
    """The id, if it can be one."""
    if type(message_id) is not int or not 0 <= message_id < 2**64:
        raise BadInput(f"{message_id!r} is not a message id.", field="id")
    return MessageId(message_id)


def check_count(field: str, value: object, most: int) -> None:
    """Refuse a count that is not between 1 and ``most``."""
    if type(value) is not int or not 1 <= value <= most:
        raise BadInput(
            f"{field} is {value!r}; it is a whole number from 1 to {most}.",
            field=field,
            limit=most,
        )
