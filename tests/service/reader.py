"""Somebody who follows a page of the documentation to the letter.

Every command runs in a shell, every file is saved, every promised output is compared. Servers and
workers run in the background, on other ports than the page's.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from tests.service.serving import surroundings, unused_port

BLOCK = re.compile(r"^```(sh|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BACKGROUND = ("penstock serve", "penstock work")
END_S = 240
#: The ports of the pages.
PORTS = (8080, 8081)


class Step(Struct, frozen=True):
    """A block of the page, and the output that follows it."""

    language: str
    text: str
    promised: str | None = None


def steps(page: str) -> list[Step]:
    """The blocks of a page; the output that it promises belongs to the block before it."""
    found: list[Step] = []
    for language, text in BLOCK.findall(page):
        if language == "text":
            last = found.pop()
            found.append(Step(last.language, last.text, text))
        else:
            found.append(Step(language, text))
    return found


class Reader:
    """A folder, a few terminals, and ports of its own."""

    def __init__(
        self, folder: Path, binaries: Path, replaced: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        ports = {port: unused_port() for port in PORTS}
        self.port = ports[PORTS[0]]
        self.replaced = {f":{page}": f":{own}" for page, own in ports.items()}
        self.replaced |= {f"--port {page}": f"--port {own}" for page, own in ports.items()}
        self.replaced |= dict(replaced or {})
        self.environment = surroundings() | {
            "PATH": os.pathsep.join([str(binaries), os.environ["PATH"]]),
            "PYTHONPATH": "",
            "PENSTOCK_PORT": str(self.port),
            "PENSTOCK_URL": f"http://127.0.0.1:{self.port}",
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def text_of(self, step: Step) -> str:
        """The block with the ports of this reader."""
        text = step.text.replace("\\\n", " ")
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        return text

    def shell(self, step: Step) -> None:
        """Run a block of commands, or start what it serves."""
        text = self.text_of(step)
        if text.startswith(BACKGROUND):
            for command in text.strip().splitlines():
                self.begin(command)
        else:
            self.run(text, step.promised)

    def begin(self, command: str) -> None:
        """Start a server or a worker in the background."""
        program, *arguments = shlex.split(command)
        with (self.folder / "background.log").open("ab") as log:
            self.running[" ".join([program, *arguments])] = subprocess.Popen(
                [shutil.which(program, path=self.environment["PATH"]) or program, *arguments],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if program == "penstock" and arguments[0] == "serve":
            self.wait_for_servers()

    def wait_for_servers(self) -> None:
        """Return when as many servers have said that they are ready as were started."""
        log = self.folder / "background.log"
        deadline = time.monotonic() + END_S
        servers = [name for name in self.running if name.startswith("penstock serve")]
        while log.read_text().count("Ctrl-C stops the server") < len(servers):
            ended = [name for name in servers if self.running[name].poll() is not None]
            assert not ended, f"{ended}\n{log.read_text()}"
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)

    def run(self, script: str, promised: str | None) -> str:
        """Run a script; its last lines have to be the promised ones. Returns its output."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=END_S,
        )
        log = self.folder / "background.log"
        said = log.read_text() if log.exists() else ""
        assert done.returncode == 0, f"{script}{done.stderr}{said}"
        if promised is not None:
            lines = promised.strip().splitlines()
            assert done.stdout.strip().splitlines()[-len(lines) :] == lines, script
        return done.stdout

    def end(self, beginning: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End what was started by a command with this beginning, if it runs."""
        for command in [name for name in self.running if name.startswith(beginning)]:
            process = self.running.pop(command)
            process.send_signal(number)
            process.wait(60)

    def close(self) -> None:
        """Leave no process behind."""
        self.end("", signal.SIGKILL)
