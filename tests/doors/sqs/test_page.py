"""The sample of docs/doors/sqs.md runs as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.service.serving import Served, surroundings

PAGE = Path(__file__).parents[3] / "docs" / "doors" / "sqs.md"


def test_the_sample(server: Served) -> None:
    (sample,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-c", sample.replace("http://127.0.0.1:8080", server.url)],
        env={**surroundings(), "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stdout == '{"order": 7} 250\n', ran.stderr
