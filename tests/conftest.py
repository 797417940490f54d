"""What several folders of tests share is imported as ``tests.…``, from wherever pytest runs.

Where several processes share the tests, all that need a Spark session of the process begin the
share of the first, and those that take long begin the shares of the others. Nobody takes work over
from the front of another's share, so there is one such session, and nothing long is begun at the
end.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.child_processes import end_leftovers, running_children

# Every Java here lives for a minute: what the second compiler makes of it costs more than it gives.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
TESTS = Path(__file__).parent
# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("any machine", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("any machine")
# A shell ignores SIGINT in what it starts in the background, and every child inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """Fail the test that leaves a process running, instead of one that runs later."""
    before = running_children()
    yield
    assert end_leftovers(before) == []


#: What a test module names if its tests start processes: servers, databases, Java, programs.
_STARTS_PROCESSES = re.compile(r"subprocess|tests\.(databases|service|pipeline)|spark_session")
_PROCESS_FOLDERS = ("crash", "pipeline", "service", "sql")
#: Seconds after which a test of the pipeline hangs; a busy machine takes two minutes for some.
_SPARK_TIMEOUT_S = 600


@cache
def _starts_processes(path: Path) -> bool:
    if any(folder in path.relative_to(TESTS).parts for folder in _PROCESS_FOLDERS):
        return True
    return _STARTS_PROCESSES.search(path.read_text()) is not None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that start processes, and order all for sharing them out."""
    for item in items:
        if _starts_processes(item.path):
            item.add_marker("processes")
        if "pipeline" in item.path.relative_to(TESTS).parts:
            # One that is cut off in Java takes the session of all that follow with it.
            item.add_marker(pytest.mark.timeout(_SPARK_TIMEOUT_S))
    _order(config, items)


def _order(config: pytest.Config, items: list[pytest.Item]) -> None:
    given = getattr(config, "workerinput", None)
    if given is None or given["workercount"] == 1:
        return
    spark, slow, rest = [], [], []
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            spark.append(item)
        elif item.get_closest_marker("slow"):
            slow.append(item)
        else:
            rest.append(item)
    others = given["workercount"] - 1
    fronts = [spark, *(slow[nth::others] for nth in range(others))]
    share = len(items) // len(fronts)
    items.clear()
    for front in fronts:
        items += front
        begun = max(share - len(front), 0)
        items += rest[:begun]
        rest = rest[begun:]
    items += rest
