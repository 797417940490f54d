"""Memory that the process is done with."""

from __future__ import annotations

import gc
import subprocess
import sys

from penstock.server.memory import keep_freed_memory, uncollected

#: Takes and frees megabytes again and again; says how many pages it was given anew.
PROGRAM = """
import resource
from penstock.server.memory import keep_freed_memory, uncollected

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if {keep}:
    keep_freed_memory()
for turn in range(11):
    if turn == 1:
        begin = faults()
    taken = [bytearray(3 << 20) for _ in range(8)]
    del taken
print(faults() - begin)
"""


def pages(*, keep: bool) -> int:
    program = PROGRAM.format(keep=keep)
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return int(done.stdout)


def test_freed_memory_is_used_again() -> None:
    assert keep_freed_memory()
    assert pages(keep=True) * 10 < pages(keep=False)


def test_what_lives_for_good_is_not_collected() -> None:
    with uncollected():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
