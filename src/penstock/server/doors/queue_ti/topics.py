"""Topics of queue-ti as topics and queues of Penstock, and their configuration as labels.

- The topic ``orders`` is the topic ``orders`` and the queue ``orders``, its *base queue*. A name
  that Penstock refuses is escaped.
- The consumer group ``billing`` of it is the queue ``orders.billing``.
- ``orders.dlq`` is the dead-letter queue of the base queue, ``orders.billing.dlq`` that of the
  group.
- The configuration of a topic is in labels of its base queue, so one change of a policy stores all
  of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock.broker import Broker
from penstock.errors import BadName, Conflict, UnknownQueue
from penstock.model.limits import DLQ_SUFFIX
from penstock.model.names import escape, unescape
from penstock.model.queue import Backoff, QueueInfo
from penstock.server.doors.queue_ti.refusals import invalid

__all__ = [
    "DEFAULT_MAX_RETRIES",
    "Limits",
    "TopicConfig",
    "TopicName",
    "base_queue",
    "config_of",
    "dlq_of",
    "ensure_base",
    "group_of",
    "group_queues",
    "has_config",
    "label_changes",
    "queues_of",
    "to_topic",
    "topic_filter",
    "topic_text",
]

DEFAULT_MAX_RETRIES: Final = 3
DEFAULT_TTL_S: Final = 24 * 3600
DEFAULT_VISIBILITY_S: Final = 30

TOPIC_LABEL: Final = "queue-ti.topic"
GROUP_LABEL: Final = "queue-ti.group"
_CONFIG_LABEL: Final = "queue-ti.config"
#: Field of the configuration to label.
_LABELS: Final = {
    "max_retries": "queue-ti.max-retries",
    "message_ttl_seconds": "queue-ti.message-ttl-seconds",
    "max_depth": "queue-ti.max-depth",
    "replay_window_seconds": "queue-ti.replay-window-seconds",
    "throughput_limit": "queue-ti.throughput-limit",
}
_REPLAYABLE_LABEL: Final = "queue-ti.replayable"
#: How long acked messages stay in the queue of a topic that is not replayable.
_DONE_RETENTION_S: Final = 3600


class TopicName(Struct, frozen=True):
    """A topic of queue-ti."""

    text: str
    """As its clients write it, without ``.dlq``."""
    name: str
    """Of the topic and the base queue of Penstock."""
    is_dlq: bool

    def queue(self, group: str = "") -> str:
        """The queue that a consumer of this topic, in this group, claims from."""
        home = f"{self.name}.{escape(group, 'consumer_group')}" if group else self.name
        return home + DLQ_SUFFIX if self.is_dlq else home

    @property
    def shown(self) -> str:
        """The topic as its clients write it."""
        return self.text + DLQ_SUFFIX if self.is_dlq else self.text


class TopicConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an operator has configured for a topic; None is the default."""

    topic: str
    max_retries: int | None = None
    message_ttl_seconds: int | None = None
    max_depth: int | None = None
    # A type without default values: the field is always shown.
    replayable: bool
    replay_window_seconds: int | None = None
    throughput_limit: int | None = None


class Limits(Struct, frozen=True):
    """The operator's limit that is not part of a topic."""

    dlq_threshold: int = 3
    """Nacks that move a message to the dead-letter queue; 0: only ``max_retries`` counts."""

    def attempts(self, config: TopicConfig) -> int:
        """The attempts of a message: the lower of the two limits that queue-ti has."""
        retries = DEFAULT_MAX_RETRIES if config.max_retries is None else config.max_retries
        return max(1, min(retries, self.dlq_threshold) if self.dlq_threshold else retries)

    def policy(self, config: TopicConfig) -> dict[str, object]:
        """The policy fields of the queues of a topic."""
        kept = config.replay_window_seconds or 0
        return {
            "max_attempts": self.attempts(config),
            "max_depth": config.max_depth or 0,
            "throughput_limit": config.throughput_limit or 0,
            "done_retention_s": kept if config.replayable else _DONE_RETENTION_S,
        }


def to_topic(text: str) -> TopicName:
    """The topic that a client names; raises if the text is empty or too long."""
    if not text:
        raise invalid("topic is required", "topic")
    is_dlq = text.endswith(DLQ_SUFFIX) and text != DLQ_SUFFIX
    home = text.removesuffix(DLQ_SUFFIX) if is_dlq else text
    return TopicName(home, escape(home, "topic"), is_dlq)


def topic_text(name: str) -> str:
    """The topic of queue-ti that a topic of Penstock stands for."""
    try:
        return unescape(name)
    except BadName:
        # A native name that begins like an escaped one.
        return name


def topic_filter(name: str) -> str:
    """The filter of a topic's queues. A name needs no quotes escaped."""
    return f"topic = '{name}'"


async def base_queue(broker: Broker, topic: TopicName) -> QueueInfo | None:
    """The base queue of a topic; None if there is none."""
    try:
        return await broker.queue(topic.name)
    except UnknownQueue:
        return None


async def ensure_base(broker: Broker, topic: TopicName, limits: Limits) -> QueueInfo:
    """The base queue of a topic, created if it is missing."""
    found = await base_queue(broker, topic)
    if found is None:
        config = TopicConfig(topic=topic.text, replayable=False)
        found = await broker.ensure_queue(
            topic.name,
            topic_filter(topic.name),
            lease_ms=DEFAULT_VISIBILITY_S * 1000,
            backoff=Backoff(0, 0),
            labels={TOPIC_LABEL: topic.name},
            **limits.policy(config),  # type: ignore[arg-type]
        )
    if GROUP_LABEL in found.policy.labels:
        raise Conflict(
            f"{topic.text!r} is the queue of a consumer group of another topic.", field="topic"
        )
    return found


async def group_queues(broker: Broker, topic: TopicName) -> list[QueueInfo]:
    """The queues of the topic's consumer groups, by name."""
    found = await broker.queues(labels={TOPIC_LABEL: topic.name})
    return [info for info in found if GROUP_LABEL in info.policy.labels]


async def queues_of(broker: Broker, topic: TopicName) -> list[QueueInfo]:
    """The base queue, if there is one, and the queues of the groups."""
    base = await base_queue(broker, topic)
    groups = await group_queues(broker, topic)
    return groups if base is None else [base, *groups]


def group_of(info: QueueInfo) -> str:
    """The consumer group that a queue belongs to."""
    return topic_text(info.policy.labels[GROUP_LABEL])


def dlq_of(queue: str) -> str:
    """The dead-letter queue of a queue."""
    return queue + DLQ_SUFFIX


def has_config(info: QueueInfo) -> bool:
    """Whether the queue is the base queue of a topic that was configured."""
    return _CONFIG_LABEL in info.policy.labels


def config_of(info: QueueInfo) -> TopicConfig:
    """The configuration in the labels of a base queue; labels of others may hold anything."""
    labels = info.policy.labels
    numbers = {field: _number(labels, label) for field, label in _LABELS.items()}
    return TopicConfig(
        topic=topic_text(info.name), replayable=_REPLAYABLE_LABEL in labels, **numbers
    )


def _number(labels: Mapping[str, str], label: str) -> int | None:
    text = labels.get(label, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else None


def label_changes(info: QueueInfo, config: TopicConfig | None) -> dict[str, str]:
    """The labels of a base queue with this configuration, or without one."""
    own = {_CONFIG_LABEL, _REPLAYABLE_LABEL, *_LABELS.values()}
    labels = {name: text for name, text in info.policy.labels.items() if name not in own}
    if config is None:
        return labels
    labels[_CONFIG_LABEL] = "1"
    if config.replayable:
        labels[_REPLAYABLE_LABEL] = "1"
    for field, label in _LABELS.items():
        value = getattr(config, field)
        if value is not None:
            labels[label] = str(value)
    return labels
