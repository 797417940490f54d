"""A queue's policy as options, and options as changes of a policy.

Only the format is checked here. The broker checks limits (exit 3, with the field's name).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast, get_args

import click

from penstock.cli.amounts import (
    COUNT_OR_NONE,
    DURATION,
    DURATION_OR_NONE,
    LABEL_OR_NONE,
    NO_LIMIT,
    SECONDS,
)
from penstock.cli.options import stacked
from penstock.model.policy_fields import PolicyChanges
from penstock.model.queue import Backoff, Ordering, RetryPosition
from penstock.model.queue_events import MessageEvent

__all__ = ["policy_options", "to_changes"]

#: An option for every field of a queue's policy except the filter; two for the backoff.
policy_options: Final = stacked(
    click.option("--max-attempts", type=int, help="Attempts before a delivery fails."),
    click.option(
        "--lease",
        "lease_ms",
        type=DURATION,
        help="The lease of claims that specify none: 30s.",
    ),
    # The name of --lease up to version 0.1.
    click.option(
        "--visibility-timeout",
        "visibility_timeout_ms",
        type=DURATION,
        hidden=True,
        help="The old name of --lease.",
    ),
    click.option("--min-lease", "min_lease_ms", type=DURATION, help="The shortest lease allowed."),
    click.option("--max-lease", "max_lease_ms", type=DURATION, help="The longest lease allowed."),
    click.option("--backoff-base", type=DURATION, help="The longest delay after the first nack."),
    click.option("--backoff-max", type=DURATION, help="The longest delay after any nack."),
    click.option(
        "--done-retention",
        "done_retention_s",
        type=SECONDS,
        help="How long done and expired deliveries are kept; 0 is forever.",
    ),
    click.option(
        "--failed-retention",
        "failed_retention_s",
        type=SECONDS,
        help="How long failed deliveries are kept; 0 is forever.",
    ),
    click.option("--max-depth", type=COUNT_OR_NONE, help="Refuse to publish beyond this depth."),
    click.option(
        "--message-ttl",
        "message_ttl_ms",
        type=DURATION_OR_NONE,
        help="How long a delivery may wait before it expires, or `none`.",
    ),
    click.option(
        "--throughput-limit", type=COUNT_OR_NONE, help="Deliveries per second that claims return."
    ),
    click.option(
        "--ordering",
        type=click.Choice([ordering.value for ordering in Ordering]),
        help="`partition` keeps the publish order within a partition key.",
    ),
    click.option(
        "--partition-concurrency", type=int, help="The most in flight within one partition."
    ),
    click.option(
        "--partition-batch",
        type=int,
        help="The most consecutive deliveries of a partition in one claim.",
    ),
    click.option(
        "--retry-position",
        type=click.Choice([position.value for position in RetryPosition]),
        help="Where a retried delivery waits: `keep` its place, or go to the `back`.",
    ),
    click.option("--bucket-size", type=int, help="For key-value engines: an exponent, 0 to 4."),
    click.option(
        "--dead-letters/--no-dead-letters",
        default=None,
        help="Whether failed deliveries are kept, or removed.",
    ),
    click.option(
        "--dead-letter-topic",
        metavar="TOPIC",
        help="The topic to which failed deliveries are copied, or `none`.",
    ),
    click.option(
        "--dead-letter-expired/--no-dead-letter-expired",
        default=None,
        help="Whether expired deliveries are copied to that topic too.",
    ),
    click.option(
        "--event",
        "events",
        type=click.Choice([*get_args(MessageEvent), NO_LIMIT]),
        multiple=True,
        help="Ends of deliveries to report to penstock.events; repeatable. `none` removes them.",
    ),
    click.option("--paused/--not-paused", default=None, help="Whether to hand out nothing."),
    click.option("--description", help="What it is for."),
    click.option(
        "--label",
        "labels",
        type=LABEL_OR_NONE,
        multiple=True,
        help="Labels, which replace those it has; repeatable. `none` removes them.",
    ),
)


def to_changes(given: Mapping[str, object], backoff: Backoff) -> PolicyChanges:
    """The given fields; a backoff that is given in part takes the rest from ``backoff``."""
    changes = {name: value for name, value in given.items() if value not in (None, ())}
    labels = changes.get("labels")
    if isinstance(labels, tuple):
        changes["labels"] = dict(label for label in labels if label != NO_LIMIT)
    events = changes.get("events")
    if isinstance(events, tuple):
        changes["events"] = [event for event in events if event != NO_LIMIT]
    for name in ("max_depth", "message_ttl_ms", "throughput_limit"):
        if changes.get(name) == NO_LIMIT:
            changes[name] = 0
    if changes.get("dead_letter_topic") == NO_LIMIT:
        changes["dead_letter_topic"] = ""
    base, most = changes.pop("backoff_base", None), changes.pop("backoff_max", None)
    if base is not None or most is not None:
        changes["backoff"] = Backoff(
            base if isinstance(base, int) else backoff.base_ms,
            most if isinstance(most, int) else backoff.max_ms,
        )
    # The broker checks names and types.
    return cast(PolicyChanges, changes)
