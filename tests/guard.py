"""A process that runs a server no longer than its own parent lives.

Run as a program, ``guard.py FOLDER USER SIGNAL COMMAND…``, it starts the command in the folder as
that user (nobody in particular if it is empty), writes the server's process id to its standard
output, and ends when the server and all its children have. On its standard input it reads

- ``kill``: the server and all its children are killed at once, with kill -9;
- the end, which comes when the parent closes it or is dead, however it died: the server gets the
  signal, is killed if it does not end soon, and its folder is removed.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

#: How long a server has to end after the signal, before it is killed.
GRACE_S = 5.0
#: prctl(2): orphans below this process become its children, instead of those of process 1.
PR_SET_CHILD_SUBREAPER = 36


def _run(folder: str, user: str, number: int, command: list[str]) -> int:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Another user may not be allowed to look at the folder that the tests run in.
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        cwd=folder,
        user=user or None,
        group=_group(user),
        extra_groups=() if user else None,
    )
    os.write(1, f"{server.pid}\n".encode())
    orphaned = threading.Event()
    threading.Thread(target=_listen, args=(server, number, orphaned), daemon=True).start()
    code = server.wait()
    _kill_children()
    if orphaned.is_set():
        shutil.rmtree(folder, ignore_errors=True)
    return 128 - code if code < 0 else code


def _group(user: str) -> int | None:
    return pwd.getpwnam(user).pw_gid if user else None


def _listen(server: subprocess.Popen[bytes], number: int, orphaned: threading.Event) -> None:
    """Do what the parent says, until it says nothing any more."""
    if os.read(0, 16).startswith(b"kill"):
        server.kill()
        return
    orphaned.set()
    server.send_signal(number)
    try:
        server.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        server.kill()


def _kill_children() -> None:
    """The server is dead and forks no more: kill what it has left behind, and see it dead."""
    threads = Path("/proc/self/task")
    while pids := [p for f in threads.glob("*/children") for p in f.read_text().split()]:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        with suppress(ChildProcessError):
            os.wait()


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
