"""Whatever verbs did to a sound store, verify finds nothing wrong with it.

The programs are those that the engines are compared with the oracle by: publishes with keys,
delays and times to live, claims, settlements of every kind, replays, purges, changed
policies, ordered queues, two tenants.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import rule

from penstock import Broker, BrokerOptions
from penstock.storage.contract import Engine
from penstock.testing.opening import Opener, url_opener
from penstock.verify import Report, verify
from tests.properties.machine import CI, EngineAgainstOracle
from tests.properties.random_steps import STEPS, Step

TENANTS = ("acme", "rival")


class VerifiedProgram(EngineAgainstOracle):
    """A random program on two engines, each verified at its end."""

    def opener(self) -> Opener:
        return url_opener("memory://")

    @rule(step=STEPS)
    def do(self, step: Step) -> None:
        """One verb. What the two show and whom they wake is the business of another test."""
        name, arguments = step
        getattr(self, name)(**arguments)

    def look(self, tenant: str, *, scan: bool = True) -> None:
        pass

    def teardown(self) -> None:
        try:
            for side in (self.engine, self.oracle):
                for tenant in TENANTS:
                    report = self._wait(self._verify(side.engine, tenant))
                    assert report.violations == ()
                    assert report.quiescent
                    assert sum(check.unresolved for check in report.checks) == 0
        finally:
            super().teardown()

    async def _verify(self, engine: Engine, tenant: str) -> Report:
        broker = Broker(engine, BrokerOptions(engine=self._options), tenant)
        return await verify(broker, clock=self.clock)


TestVerifiedPrograms = VerifiedProgram.TestCase
TestVerifiedPrograms.settings = settings(CI, max_examples=25, stateful_step_count=40)
