"""The samples of docs/doors, run in a shell as they are printed, with curl."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.service.serving import Serve, unused_port

PAGES = Path(__file__).resolve().parents[2] / "docs" / "doors"
_SAMPLE = re.compile(r"^```sh\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("door", ["codeq", "mq", "queue-ti"])
def test_the_sample_prints_what_the_page_says(serve: Serve, tmp_path: Path, door: str) -> None:
    found = _SAMPLE.search((PAGES / f"{door}.md").read_text())
    assert found is not None
    script, expected = found.groups()
    server = serve("--door", door, "--queue-ti-grpc-port", str(unused_port()))
    done = subprocess.run(
        ["bash", "-euo", "pipefail"],
        input=script.replace("http://localhost:8080", server.url),
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == expected
