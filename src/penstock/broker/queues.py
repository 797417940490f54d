"""Queue and topic policies, the broker's part: sound values or a typed refusal (E1)."""

from __future__ import annotations

from penstock.errors import BadInput, BadPolicy
from penstock.filters import parse
from penstock.model.limits import MAX_TIME_MS
from penstock.model.queue import QueuePolicy, Start, check_queue_policy

__all__ = ["changed_policy", "new_policy", "to_start"]

_FIELDS = frozenset(QueuePolicy.__struct_fields__)


def new_policy(fields: dict[str, object]) -> QueuePolicy:
    """A checked policy from keyword arguments; what is not given has its default."""
    return changed_policy(QueuePolicy(), fields)


def changed_policy(policy: QueuePolicy, fields: dict[str, object]) -> QueuePolicy:
    """The policy with some fields changed, checked."""
    unknown = sorted(fields.keys() - _FIELDS)
    if unknown:
        raise BadPolicy(
            f"A queue policy has no field {unknown[0]!r}; it has {', '.join(sorted(_FIELDS))}.",
            field=unknown[0],
        )
    values = {name: getattr(policy, name) for name in _FIELDS}
    changed = check_queue_policy(QueuePolicy(**{**values, **fields}))
    parse(changed.filter)
    return changed


def to_start(start: str | Start) -> Start:
    """``latest``, ``earliest``, or a ``Start`` with an offset or a time."""
    if isinstance(start, str):
        start = Start(start)
    if start.at not in (Start.LATEST, Start.EARLIEST, Start.OFFSET, Start.TIME):
        raise BadInput(
            f"start is {start.at!r}; it is latest, earliest, an offset or a time.", field="start"
        )
    if type(start.value) is not int or not 0 <= start.value <= MAX_TIME_MS:
        raise BadInput(f"start has the value {start.value!r}; it is at least 0.", field="start")
    return start
