"""One run: a new server, client processes, and what the probe and the meter say about them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from bench.measuring import scratch
from bench.peers.client import FILLING
from bench.peers.cost import Meter, memory_bytes
from bench.peers.peer import Peer
from bench.peers.probe import Phase, Probe, percentile
from bench.peers.process import GuardedProcess
from bench.peers.results import Plan, Run
from bench.peers.workloads import WORKLOADS, Workload

__all__ = ["run"]

_START_S: Final = 60.0
#: A client that is ended has to finish its last call.
_END_S: Final = 15.0
#: Without progress for so long, nothing more will come.
_STALLED_S: Final = 5.0
_DRAIN_S: Final = 60.0
_FILL_S: Final = 60.0
#: Claims of W7 stop before the queue is empty.
_DRAINED_SHARE: Final = 0.9
_POLL_S: Final = 0.01


class RunFailed(Exception):
    """A client or the server did not do its part."""


def run(kind: type[Peer], workload: str, plan: Plan) -> Run:
    """Run a workload. A failure is a result too: a peer that fails must not end the benchmark."""
    with scratch() as folder, _probe() as probe:
        peer = kind(folder)
        try:
            peer.start()
            return _WAYS.get(workload, _throughput)(peer, WORKLOADS[workload], probe, plan)
        except (RunFailed, RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            return Run(error=f"{type(error).__name__}: {error}")
        finally:
            peer.stop()


# -- W1 to W6 ----------------------------------------------------------------------------------


def _throughput(peer: Peer, workload: Workload, probe: Probe, plan: Plan) -> Run:
    with _Clients(peer, probe) as clients:
        if workload.consumers:
            clients.start("consumer", workload)
        clients.start("producer", workload)
        clients.await_ready()
        meter = Meter(peer.server_roots(), clients.roots(), peer.folder)
        done = probe.settled_count if workload.is_consumed else probe.published_count
        probe.phase = Phase.WARM_UP
        time.sleep(plan.warm_up_s)
        probe.phase = Phase.MEASURE
        reading, before = meter.read(), done()
        time.sleep(plan.seconds)
        messages, cost = done() - before, meter.cost_since(reading)
        clients.check()
        probe.phase = Phase.DRAIN
        clients.end("producer")
        if workload.is_consumed:
            _drain(probe)
        probe.phase = Phase.END
        clients.end("consumer")
    times = probe.latency_us if workload.is_consumed else probe.call_us
    return Run(
        messages=messages,
        cost=cost,
        p50_ms=percentile(times, 0.5),
        p99_ms=percentile(times, 0.99),
        verdict=probe.verdict() if workload.is_consumed else None,
    )


def _drain(probe: Probe) -> None:
    """Wait until every published message is settled, or until nothing moves."""
    _await_quiet(
        probe.settled_count,
        _STALLED_S,
        lambda: probe.settled_count() >= probe.published_count(),
    )


def _await_quiet(
    value: Callable[[], int], quiet_s: float, is_over: Callable[[], bool] = lambda: False
) -> None:
    """Wait until the value has not changed for so long."""
    last, changed = value(), time.monotonic()
    deadline = changed + _DRAIN_S
    while not is_over() and time.monotonic() < min(deadline, changed + quiet_s):
        time.sleep(_POLL_S)
        if (now := value()) != last:
            last, changed = now, time.monotonic()


# -- W7 ----------------------------------------------------------------------------------------


def _backlog(peer: Peer, workload: Workload, probe: Probe, plan: Plan) -> Run:
    """Fill the queue, weigh the server, and measure at the head of the queue."""
    idle = memory_bytes(peer.server_roots())
    with _Clients(peer, probe) as clients:
        clients.start("producer", FILLING, str(plan.waiting))
        clients.await_ready()
        probe.phase = Phase.WARM_UP
        deadline = time.monotonic() + _FILL_S
        while not clients.have_ended() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        probe.phase = Phase.DRAIN
        clients.end("producer")
        waiting = probe.published_count()
        filled = memory_bytes(peer.server_roots())
        clients.start("consumer", workload)
        clients.await_ready()
        meter = Meter(peer.server_roots(), clients.roots(), peer.folder)
        while not probe.settled_count():
            clients.check()
            time.sleep(_POLL_S)
        reading, before = meter.read(), probe.settled_count()
        deadline = time.monotonic() + plan.seconds
        while time.monotonic() < deadline and probe.settled_count() < _DRAINED_SHARE * waiting:
            time.sleep(_POLL_S)
        messages, cost = probe.settled_count() - before, meter.cost_since(reading)
        clients.check()
        probe.phase = Phase.END
        clients.end("consumer")
    return Run(messages=messages, cost=cost, waiting=waiting, idle_bytes=idle, filled_bytes=filled)


# -- W8 ----------------------------------------------------------------------------------------


def _crash(peer: Peer, workload: Workload, probe: Probe, plan: Plan) -> Run:
    """Kill the server under load, start it again on the same folder, drain and compare."""
    with _Clients(peer, probe) as clients:
        clients.start("consumer", workload)
        clients.start("producer", workload)
        clients.await_ready()
        probe.phase = Phase.WARM_UP
        time.sleep(plan.seconds)
        clients.check()
        peer.kill()
    settled, received = bytes(probe.settled), bytes(probe.received)
    peer.start()
    probe.phase = Phase.DRAIN
    with _Clients(peer, probe) as clients:
        clients.start("consumer", workload)
        clients.await_ready()
        # Messages that a consumer held come back when their lease is over.
        _await_quiet(probe.settled_count, peer.redelivery_s)
        clients.check()
        probe.phase = Phase.END
        clients.end("consumer")
    return Run(verdict=probe.verdict(), settled_again=probe.received_since(settled, received))


_WAYS: Final = {"W7": _backlog, "W8": _crash}

# -- processes ---------------------------------------------------------------------------------


class _Clients:
    """The client processes of a run, by role; the end of the block kills those that remain."""

    def __init__(self, peer: Peer, probe: Probe) -> None:
        self._peer = peer
        self._probe = probe
        self._expected = probe.ready_clients()
        self._running: dict[str, GuardedProcess] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._running.values():
            process.kill()

    def start(self, role: str, workload: Workload, *rest: str) -> None:
        peer, probe = self._peer, self._probe.path
        command = [
            *(sys.executable, "-m", "bench.peers.client", peer.name, role, workload.name),
            *(str(probe), peer.address, *rest),
        ]
        environment = {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
        if role == "consumer" and (worker := peer.worker(probe)) is not None:
            command, more = worker
            environment |= more
        log = probe.with_suffix(f".{role}.log")
        self._running[role] = GuardedProcess(log, command, environment)
        self._expected += 1

    def await_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while self._probe.ready_clients() < self._expected:
            self.check()
            if time.monotonic() > deadline:
                raise RunFailed(f"a client does not start:\n{self._logs()}")
            time.sleep(_POLL_S)

    def roots(self) -> list[int]:
        return [process.root for process in self._running.values()]

    def have_ended(self) -> bool:
        return all(process.has_ended for process in self._running.values())

    def check(self) -> None:
        """Raise if a client has ended, although it should not have."""
        for role, process in self._running.items():
            if process.has_ended:
                raise RunFailed(f"the {role} ended early:\n{process.log_end()}")

    def end(self, role: str) -> None:
        """Wait for a client whose phase is over."""
        process = self._running.pop(role, None)
        if process is None:
            return
        if role == "consumer" and self._peer.worker(self._probe.path) is not None:
            process.stop()
            return
        try:
            code = process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise RunFailed(f"the {role} does not end:\n{process.log_end()}") from None
        if code:
            raise RunFailed(f"the {role} failed:\n{process.log_end()}")

    def _logs(self) -> str:
        return "\n".join(process.log_end() for process in self._running.values())


@contextmanager
def _probe() -> Iterator[Probe]:
    """A probe in memory, if the system has a folder there."""
    shared = Path("/dev/shm")
    base = shared if os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=base) as folder:
        yield Probe.create(Path(folder) / "probe")
