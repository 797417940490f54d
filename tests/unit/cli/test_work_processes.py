"""Several processes for one app, options of the server, and reloading."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from penstock.cli.work_processes import source_stamps, supervise
from penstock.testing.laws import law
from tests.unit.cli.conftest import Shell
from tests.unit.cli.test_server import served

PENSTOCK = [sys.executable, "-m", "penstock"]

APP = """
import os
import sys
from penstock.worker import App, Context

app = App({where})

@app.task()
async def whoami(context: Context) -> int:
    return os.getpid()

@app.worker("ready", filter="topic = 'ready'")
async def ready(payload: bytes) -> None: ...

# One write: two processes share the pipe, and unbuffered print makes several.
os.write(1, b"VERSION %d\\n" % os.getpid())
"""

CHILD = """
import signal, sys
def stop(*_):
    print("stopped", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("started", flush=True)
if sys.argv[1] == "fail":
    sys.exit(7)
if sys.argv[1] == "die":
    import os
    os.kill(os.getpid(), signal.SIGKILL)
signal.pause()
"""


@contextmanager
def working(folder: Path, *args: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """``penstock work`` in a folder, and its output. It is killed if the test fails."""
    with subprocess.Popen([*PENSTOCK, "work", *args], cwd=folder, stdout=subprocess.PIPE) as work:
        assert work.stdout is not None
        try:
            yield work, work.stdout
        finally:
            work.kill()


def command(*kinds: str) -> Sequence[Sequence[str]]:
    return [[sys.executable, "-c", CHILD, kind] for kind in kinds]


@pytest.mark.parametrize("kind, code", [("fail", 7), ("die", 137)])
async def test_a_process_that_ends_stops_the_others_and_its_code_is_returned(
    kind: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    commands = command("run", kind)
    assert await asyncio.wait_for(supervise(lambda n: commands[n], 2), 60) == code
    # The healthy one may be terminated before it has installed its handler.
    assert capfd.readouterr().out.count("started") >= 1


async def test_a_change_restarts_and_a_failing_start_waits_for_the_next_change() -> None:
    changes: asyncio.Queue[None] = asyncio.Queue()
    starts: asyncio.Queue[int] = asyncio.Queue()
    kinds = iter(command("fail", "run", "run"))

    async def changed() -> AsyncIterator[None]:
        while True:
            await changes.get()
            yield

    def next_command(number: int) -> Sequence[str]:
        starts.put_nowait(number)
        return next(kinds)

    running = asyncio.create_task(supervise(next_command, 1, changed()))
    await asyncio.wait_for(starts.get(), 60)
    for _ in range(2):
        assert starts.empty()
        changes.put_nowait(None)
        await asyncio.wait_for(starts.get(), 60)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, 60) == 0


def test_changed_added_and_removed_files_are_noticed(tmp_path: Path) -> None:
    for name in ("package", ".hidden", "__pycache__"):
        (tmp_path / name).mkdir()
    path = tmp_path / "package" / "workers.py"
    path.write_text("one")
    first = source_stamps(tmp_path)
    for ignored in (".hidden/a.py", "__pycache__/a.py", "notes.txt"):
        (tmp_path / ignored).write_text("x")
    assert source_stamps(tmp_path) == first == {str(path): path.stat().st_mtime_ns}
    os.utime(path, ns=(1, 1))
    assert source_stamps(tmp_path) == {str(path): 1}
    path.unlink()
    assert source_stamps(tmp_path) == {}


def test_two_processes_on_a_server_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "shop_workers.py").write_text(APP.format(where=""))
    with served("--store", f"rocksdb://{tmp_path}/server") as told:
        args = ["shop_workers", "--processes", "2", "--url", told["url"]]
        with working(tmp_path, *args) as (work, output):
            pids = {int(output.readline().split()[1]) for _ in range(2)}
            sent = Shell.run(
                Shell(str(tmp_path)),
                *("publish", "tasks", "{}", "--header", "task=whoami", "--url", told["url"]),
            )
            assert sent.exit_code == 0, sent.output
            work.send_signal(signal.SIGTERM)
            work.communicate(timeout=60)
        assert work.returncode == 0
    assert len(pids | {work.pid}) == 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_end_when_their_parent_was_killed(tmp_path: Path) -> None:
    (tmp_path / "shop_workers.py").write_text(APP.format(where=""))
    with served("--store", f"rocksdb://{tmp_path}/server") as told:
        args = ["shop_workers", "--processes", "2", "--url", told["url"]]
        with working(tmp_path, *args) as (work, output):
            for _ in range(2):
                assert output.readline().startswith(b"VERSION")
            work.kill()
            # The children hold the pipe, so its end means that they have ended.
            assert output.read() == b""


def test_reload(tmp_path: Path) -> None:
    path = tmp_path / "shop_workers.py"
    path.write_text(APP.format(where="'memory://'"))
    with working(tmp_path, "shop_workers", "--reload") as (work, output):
        first = output.readline()
        path.write_text(APP.format(where="'memory://'").replace("VERSION", "CHANGED"))
        second = output.readline()
        work.send_signal(signal.SIGINT)
        work.communicate(timeout=60)
    assert (first[:7], second[:7], work.returncode) == (b"VERSION", b"CHANGED", 0)


@law("E1")
def test_a_store_in_a_folder_has_one_process(sh: Shell, tmp_path: Path) -> None:
    (tmp_path / "shop_workers.py").write_text(APP.format(where="'rocksdb:///nowhere'"))
    done = subprocess.run(
        [*PENSTOCK, "work", "shop_workers", "--processes", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    assert "Only one process can open this store" in done.stderr


@law("E1")
@pytest.mark.parametrize("count", ["0", "257", "two"])
def test_a_bad_number_of_processes(sh: Shell, count: str) -> None:
    assert sh.run("work", "shop_workers", "--processes", count).exit_code == 2
