"""docs/tutorial.md, followed to the letter: every command, every file, every promised output.

In an empty folder, and in a new environment that has what the page installs and nothing else.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from tests.service.environments import build_wheel, install
from tests.service.serving import surroundings, unused_port

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(sh|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: What needs a network; the fixture does the same without one.
INSTALLATION = re.compile(r"pip install 'penstock\[([a-z,]+)\]'")
BACKGROUND = ("penstock serve", "penstock work")
END_S = 240


class Step(Struct, frozen=True):
    """A block of the page, and the output that follows it."""

    language: str
    text: str
    promised: str | None = None


def steps() -> list[Step]:
    found: list[Step] = []
    for language, text in BLOCK.findall(TUTORIAL.read_text()):
        if language == "text":
            last = found.pop()
            found.append(Step(last.language, last.text, text))
        else:
            found.append(Step(language, text))
    return found


class Reader:
    """Somebody with a folder, a few terminals, and another port than the page's."""

    def __init__(self, folder: Path, environment: Path) -> None:
        self.folder = folder
        self.port = unused_port()
        bin_folder = str(environment / "bin")
        self.environment = surroundings() | {
            "PATH": os.pathsep.join([bin_folder, os.environ["PATH"]]),
            "PYTHONPATH": "",
            "PENSTOCK_PORT": str(self.port),
            "PENSTOCK_URL": f"http://127.0.0.1:{self.port}",
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def follow(self, step: Step) -> None:
        text = step.text.replace("127.0.0.1:8080", f"127.0.0.1:{self.port}")
        if step.language == "python":
            self.end("penstock work")
            (self.folder / "billing.py").write_text(text)
            if "penstock serve" in self.running and "refunded" in text:
                self.begin("penstock work billing:app")
        elif text.startswith(BACKGROUND):
            self.begin(text.strip())
        elif not INSTALLATION.search(text):
            self.run(text, step.promised)

    def begin(self, command: str) -> None:
        with (self.folder / "background.log").open("ab") as log:
            program, *arguments = command.split()
            self.running[f"{program} {arguments[0]}"] = subprocess.Popen(
                [shutil.which(program, path=self.environment["PATH"]) or program, *arguments],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if command.startswith("penstock serve"):
            self.run("until penstock status; do sleep 0.1; done", None)

    def run(self, script: str, promised: str | None) -> None:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=END_S,
        )
        log = (self.folder / "background.log").read_text()
        assert done.returncode == 0, f"{script}{done.stderr}{log}"
        if promised is not None:
            assert done.stdout.strip().endswith(promised.strip()), script

    def end(self, command: str) -> None:
        process = self.running.pop(command, None)
        if process is not None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    (extras,) = INSTALLATION.findall("".join(step.text for step in steps()))
    install(build_wheel(tmp_path), tmp_path / "environment", *extras.split(","))
    (tmp_path / "folder").mkdir()
    found = Reader(tmp_path / "folder", tmp_path / "environment")
    try:
        yield found
    finally:
        for process in found.running.values():
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tutorial(reader: Reader) -> None:
    for step in steps():
        reader.follow(step)
    page = (reader.folder / "report" / "index.html").read_text()
    assert "the amount is -5" in page
