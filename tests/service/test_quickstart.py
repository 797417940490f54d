"""What ``penstock serve`` prints as next steps works as it is printed, in a shell of its own.

The shell has no virtual environment and no penstock on its path, as a second terminal has not.
"""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.service.certificates import self_signed
from tests.service.serving import Serve, read_line

#: The last line that is printed.
_END = "Ctrl-C stops the server"


@pytest.mark.parametrize(
    "kind", ["plain", "auth", "without queues of its own", "tls", "tls and auth"]
)
def test_what_it_prints_works_as_printed(kind: str, serve: Serve) -> None:
    flags = ["--auth"] if "auth" in kind else []
    if "tls" in kind:
        pair = self_signed(serve.folder)
        flags += ["--tls-cert", str(pair.cert), "--tls-key", str(pair.key)]
    if "without" in kind:
        flags.append("--no-auto-create")
    process, log = serve.begin(*flags)
    printed: list[str] = []
    while not printed or _END not in printed[-1]:
        line = read_line(process, 60).decode()
        assert line, log.read_text()
        printed.append(line)
    assert serve.store in "".join(printed)
    done = subprocess.run(
        ["bash", "-eu"],
        input="".join(commands(printed)),
        capture_output=True,
        text=True,
        timeout=60,
        cwd=serve.folder,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
    )
    assert done.returncode == 0, done.stderr
    output = done.stdout.replace(" ", "")
    # Published and claimed by curl, then by Python, then listed.
    assert '"durability":"fsync"' in output
    assert '"payload":{"order":7}' in output
    assert """b'{"order":8}'{'amount':250}""" in output
    assert re.search(r"^orders\b", done.stdout, re.MULTILINE)
    process.terminate()
    assert process.wait(60) == 0


def commands(printed: list[str]) -> list[str]:
    """What a person would copy: everything from the first command on, without the prose."""
    first = next(n for n, line in enumerate(printed) if line.startswith(("curl", "export")))
    return [line for line in printed[first:-1] if not re.fullmatch(r"[A-Z].*:\n", line)]
