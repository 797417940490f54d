"""Compares the policies that a publish was checked against with the current ones (E1).

The broker checks payloads against the policy of their topic before the engine stores them, and
another process may change the policy in between. So a publish names the policies, and every engine
compares them in the commit that stores the messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from penstock.errors import TopicChanged
from penstock.model.queue import TopicPolicy

__all__ = ["CheckedBy", "check_topics"]

#: The topic policies that messages were checked against; None: the caller does not say.
CheckedBy: TypeAlias = Mapping[str, TopicPolicy | None] | None


def check_topics(checked: CheckedBy, in_force: Mapping[str, TopicPolicy]) -> None:
    """Refuse messages that were checked against policies other than the current ones."""
    if checked is None:
        return
    for topic, policy in checked.items():
        now = in_force.get(topic)
        if now is not policy and now != policy:
            raise TopicChanged(f"The policy of topic {topic!r} has changed.", field="topic")
