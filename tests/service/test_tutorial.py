"""docs/tutorial.md, followed to the letter: every command, every file, every promised output.

In an empty folder, and in a new environment that has what the page installs and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.environments import build_wheel, install
from tests.service.reader import Reader, Step, steps

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
#: What needs a network; the fixture does the same without one.
INSTALLATION = re.compile(r"pip install 'penstock\[([a-z,]+)\]'")


def follow(reader: Reader, step: Step) -> None:
    if step.language == "python":
        reader.end("penstock work")
        (reader.folder / "billing.py").write_text(reader.text_of(step))
        if reader.running and "refunded" in step.text:
            reader.begin("penstock work billing:app")
    elif not INSTALLATION.search(step.text):
        reader.shell(step)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    (extras,) = INSTALLATION.findall(TUTORIAL.read_text())
    install(build_wheel(tmp_path), tmp_path / "environment", *extras.split(","))
    (tmp_path / "folder").mkdir()
    found = Reader(tmp_path / "folder", tmp_path / "environment" / "bin")
    yield found
    found.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tutorial(reader: Reader) -> None:
    for step in steps(TUTORIAL.read_text()):
        follow(reader, step)
    page = (reader.folder / "report" / "index.html").read_text()
    assert "the amount is -5" in page


@pytest.mark.parametrize(
    "page",
    [
        "```sh\necho 12\n```\n\n```text\n2\n```\n",
        "```sh\nprintf 'a\\nb'\n```\n\n```text\nb\na\n```\n",
        "```sh\ntrue\n```\n\n```text\nwords\n```\n",
        "```sh\nfalse | true\n```\n",
    ],
)
def test_a_promise_that_is_not_kept_fails(page: str, tmp_path: Path) -> None:
    """The test above is worth nothing if any output satisfied it."""
    [step] = steps(page)
    with pytest.raises(AssertionError):
        Reader(tmp_path, tmp_path).shell(step)
