"""Policies that clients set concurrently: labels, and the defaults of queues.

- The labels of the queue ``dead`` are changed by programs, and nothing else of it. A listing shows
  labels that are current while it runs, and null reverts to the server's default.
- No queue takes a plain message of the topic ``fresh``, so a publish creates the queue of that
  name. It has defaults of the topic that are current while such a publish runs, and otherwise those
  of the server.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.broker import Broker
from penstock.errors import UnknownQueue
from penstock.model.queue import TopicPolicy
from penstock.testing.simulation.policies import DEAD, FRESH, TENANTS
from penstock.testing.simulation.registers import Register

__all__ = ["DEFAULTS", "DeclaredPolicies"]

#: What programs set as ``queue_defaults``.
DEFAULTS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"max_attempts": 1, "labels": {"tier": "1"}},
    {"max_attempts": 7, "ordering": "partition"},
)
_Labels = dict[str, str]


class DeclaredPolicies:
    """The labels and defaults of one run."""

    def __init__(self) -> None:
        self._labels: Register[_Labels] = Register({})
        self._defaults: dict[str, Register[dict[str, Any]]] = {
            tenant: Register({}) for tenant in TENANTS
        }
        #: The moments between which publishes to the new queue ran, until one was answered.
        self._publishes: dict[str, list[list[int]]] = {tenant: [] for tenant in TENANTS}
        self._is_created: set[str] = set()

    # -- labels ------------------------------------------------------------------------

    async def set_labels(self, server: Broker, labels: _Labels | None) -> None:
        """Label the queue; None reverts to the default."""
        default = server.options.engine.default_policy.labels
        with self._labels.setting(default if labels is None else labels):
            await server.for_tenant(TENANTS[0]).update_queue(DEAD, labels=labels)

    async def list_by_labels(self, broker: Broker, labels: _Labels) -> list[str]:
        """List the queues with these labels; returns the violations."""
        begun = self._labels.now()
        infos = {info.name: info.policy.labels for info in await broker.queues(labels=labels)}
        found = [
            f"labels: {name!r} with {has} is listed by {labels}"
            for name, has in infos.items()
            if not labels.items() <= has.items()
        ]
        if broker.tenant != TENANTS[0]:
            return found
        possible = self._labels.possible(begun, self._labels.now())
        if DEAD in infos:
            is_right = infos[DEAD] in possible
        else:
            is_right = any(not labels.items() <= has.items() for has in possible)
        if not is_right:
            shown = f"{infos.get(DEAD)}, but its labels were {possible}"
            found.append(f"labels: a listing by {labels} shows {DEAD!r} with {shown}")
        return found

    # -- defaults ----------------------------------------------------------------------

    async def set_defaults(self, broker: Broker, number: int) -> None:
        """Replace the topic's defaults of queues."""
        defaults = DEFAULTS[number % len(DEFAULTS)]
        with self._defaults[broker.tenant].setting(defaults):
            await broker.put_topic(FRESH, TopicPolicy(queue_defaults=defaults))

    async def publish_fresh(self, broker: Broker) -> None:
        """Publish a message, which creates the queue if there is none."""
        register = self._defaults[broker.tenant]
        # Without a reply it may have created the queue at any later moment.
        moments = [register.now()]
        if broker.tenant not in self._is_created:
            self._publishes[broker.tenant].append(moments)
        await broker.publish(FRESH, b"fresh")
        moments.append(register.now())
        self._is_created.add(broker.tenant)

    async def judge(self, server: Broker) -> list[str]:
        """Check the policies when all clients are done."""
        found = await self.list_by_labels(server.for_tenant(TENANTS[0]), {})
        for tenant in TENANTS:
            found += await self._judge_created(server.for_tenant(tenant))
        return found

    async def _judge_created(self, broker: Broker) -> list[str]:
        try:
            policy = (await broker.queue(FRESH)).policy
        except UnknownQueue:
            return []
        register = self._defaults[broker.tenant]
        default = broker.options.engine.default_policy
        allowed = []
        for begun, *ended in self._publishes[broker.tenant]:
            for fields in register.possible(begun, ended[0] if ended else register.now()):
                wanted = {name: getattr(default, name) for name in _JUDGED} | fields
                allowed.append([wanted[name] for name in _JUDGED])
        has = [getattr(policy, name) for name in _JUDGED]
        if has in allowed:
            return []
        return [f"defaults: {FRESH!r} of {broker.tenant!r} has {has}, but may have {allowed}"]


#: The fields that defaults set.
_JUDGED: Final = ("max_attempts", "labels", "ordering")
