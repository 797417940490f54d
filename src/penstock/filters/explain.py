"""Why a message does or does not match a filter, clause by clause, with the values.

It answers "why did my message not arrive" with the clauses that are not TRUE and the
message's values in them. It never raises for a checked filter and changes nothing.
"""

from __future__ import annotations

from msgspec import Struct

from penstock.filters.filter import Filter
from penstock.filters.to_text import to_text, value_text
from penstock.filters.tree import And, Condition, Field, Header, Not, Or, walk
from penstock.filters.values import evaluate, evaluate_value
from penstock.model.message import Message

__all__ = ["Blame", "Explanation", "explain"]


class Blame(Struct, frozen=True):
    """A clause that is not TRUE although the filter requires it, and why."""

    clause: str
    """The clause as canonical text."""
    verdict: bool | None
    reason: str

    def __str__(self) -> str:
        return f"{self.clause} is {_word(self.verdict)} because {self.reason}"

    @property
    def without_values(self) -> str:
        """For callers that may not read the message: no values, nor whether it has any."""
        return f"{self.clause} is not TRUE"


class Explanation(Struct, frozen=True):
    """The result of a filter for a message; ``blames`` is empty iff it is TRUE."""

    filter: str
    verdict: bool | None
    blames: tuple[Blame, ...]

    @property
    def matches(self) -> bool:
        """Whether the message belongs to a queue with this filter."""
        return self.verdict is True

    def __str__(self) -> str:
        if self.matches:
            return f"{self.filter} is TRUE"
        return "; ".join(map(str, self.blames))

    @property
    def without_values(self) -> str:
        """For callers that may not read the message."""
        if self.matches:
            return str(self)
        return "; ".join(blame.without_values for blame in self.blames)


def explain(filter: Filter, message: Message) -> Explanation:
    """Evaluate ``filter`` for ``message``, and find the clauses to blame."""
    verdict = evaluate(filter.tree, message)
    blames = () if verdict is True else tuple(_blames(filter.tree, message, True))
    return Explanation(filter.text, verdict, blames)


def _blames(node: Condition, message: Message, wanted: bool) -> list[Blame]:
    """The clauses below ``node`` that are not ``wanted``; NOT inverts ``wanted``."""
    if evaluate(node, message) is wanted:
        return []
    match node:
        case Not(And() | Or() | Not() as operand):
            return _blames(operand, message, not wanted)
        case And(operands) | Or(operands):
            return [blame for operand in operands for blame in _blames(operand, message, wanted)]
        case _:
            clause: Condition = node if wanted else _negation(node)
            verdict = evaluate(clause, message)
            return [Blame(to_text(clause), verdict, _reason(clause, message, verdict))]


def _negation(node: Condition) -> Condition:
    return node.operand if isinstance(node, Not) else Not(node)


def _reason(clause: Condition, message: Message, verdict: bool | None) -> str:
    sources = list(
        dict.fromkeys(node for node, _ in walk(clause) if isinstance(node, Field | Header))
    )
    if not sources:
        return "it reads nothing of the message"
    absent = [source for source in sources if evaluate_value(source, message) is None]
    if verdict is None and absent:
        return " and ".join(_state(source, message, False) for source in absent)
    return " and ".join(_state(source, message, verdict is None) for source in sources)


def _state(source: Field | Header, message: Message, with_type: bool) -> str:
    """The value in the message; with its type if a type mismatch may be to blame."""
    if isinstance(source, Field):
        value = getattr(message, source.name)
        if value is None:
            return f"{source.name} is not set"
    elif source.name not in message.headers:
        return f"header {value_text(source)} is absent"
    else:
        value = message.headers[source.name]
    if value != value:  # noqa: PLR0124 - only NaN differs from itself
        return f"header {value_text(source)} is NaN"
    shown = ("FALSE", "TRUE")[value] if isinstance(value, bool) else repr(value)
    kind = f" ({_KINDS[type(value)]})" if with_type else ""
    return f"{value_text(source)} is {shown}{kind}"


_KINDS = {str: "a string", int: "an integer", float: "a float", bool: "a boolean"}


def _word(verdict: bool | None) -> str:
    return "NULL" if verdict is None else str(verdict).upper()
