"""A queue's policy as options, and the options as changes of a policy.

Bounds are the broker's business (exit 3, with the field's name); here is only the form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from penstock.cli.amounts import COUNT_OR_NONE, DURATION, SECONDS, CountOrNone
from penstock.model.queue import Backoff, Ordering

__all__ = ["policy_options", "to_changes"]

F = TypeVar("F", bound=Callable[..., Any])

#: Option to (field of the policy, what click makes of it).
_OPTIONS: Final = (
    click.option("--max-attempts", type=int, help="Grants before a delivery fails."),
    click.option(
        "--visibility-timeout",
        "visibility_timeout_ms",
        type=DURATION,
        help="The lease of a claim that names none: 30s.",
    ),
    click.option("--min-lease", "min_lease_ms", type=DURATION, help="No lease is shorter."),
    click.option("--max-lease", "max_lease_ms", type=DURATION, help="No lease is longer."),
    click.option("--backoff-base", type=DURATION, help="The wait after the first nack, at most."),
    click.option("--backoff-max", type=DURATION, help="The wait after any nack, at most."),
    click.option(
        "--done-retention",
        "done_retention_s",
        type=SECONDS,
        help="How long done and expired deliveries are kept; 0 is for ever.",
    ),
    click.option(
        "--failed-retention",
        "failed_retention_s",
        type=SECONDS,
        help="How long failed deliveries are kept; 0 is for ever.",
    ),
    click.option("--max-depth", type=COUNT_OR_NONE, help="Publishing past it is refused."),
    click.option(
        "--throughput-limit", type=COUNT_OR_NONE, help="Deliveries a second that claims give."
    ),
    click.option(
        "--ordering",
        type=click.Choice([ordering.value for ordering in Ordering]),
        help="`partition` keeps publish order inside a partition key.",
    ),
    click.option(
        "--partition-concurrency", type=int, help="In flight inside one partition, at most."
    ),
    click.option("--bucket-size", type=int, help="For key-value engines: an exponent, 0 to 4."),
    click.option("--paused/--not-paused", default=None, help="Whether it hands out nothing."),
    click.option("--description", help="What it is for."),
)


def policy_options(function: F) -> F:
    """Every field of a queue's policy but the filter."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def to_changes(given: Mapping[str, object], backoff: Backoff) -> dict[str, object]:
    """The fields that were given; half a backoff keeps the other half of ``backoff``."""
    changes = {name: value for name, value in given.items() if value is not None}
    for name in ("max_depth", "throughput_limit"):
        if changes.get(name) == CountOrNone.NONE:
            changes[name] = None
    base, most = changes.pop("backoff_base", None), changes.pop("backoff_max", None)
    if base is not None or most is not None:
        changes["backoff"] = Backoff(
            base if isinstance(base, int) else backoff.base_ms,
            most if isinstance(most, int) else backoff.max_ms,
        )
    return changes
