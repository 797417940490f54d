"""The program: its commands, and how each outcome is reported.

Any error becomes a line on stderr that states the problem, a line with advice, and an exit code
(``penstock.cli.exits``). Tracebacks are only printed with ``--debug``.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from io import TextIOWrapper
from traceback import print_exception
from typing import Any, Final, NoReturn

import click

from penstock.cli.exits import Exit, exit_of
from penstock.cli.options import Choices, Family, target_options
from penstock.cli.printing import colour, safe
from penstock.errors import PenstockError, StoreLocked, Unreachable
from penstock.version import VERSION

__all__ = ["main", "program"]

#: Command to "module:name". A command is imported when it is run or listed.
_COMMANDS: Final = {
    "serve": "penstock.cli.serve:serve",
    "status": "penstock.cli.status:status",
    "publish": "penstock.cli.publish:publish",
    "consume": "penstock.cli.consume:consume",
    "queue": "penstock.cli.queue.commands:queue",
    "topic": "penstock.cli.topic:topic",
    "webhook": "penstock.cli.webhook:webhook",
    "filter": "penstock.cli.filters:filters",
    "apply": "penstock.cli.apply:apply",
    "export": "penstock.cli.apply:export",
    "tail": "penstock.cli.tail:tail",
    "peek": "penstock.cli.deliveries:peek",
    "replay": "penstock.cli.deliveries:replay",
    "message": "penstock.cli.message:message",
    "history": "penstock.cli.message:history",
    "result": "penstock.cli.message:result",
    "cancel": "penstock.cli.message:cancel",
    "find": "penstock.cli.message:find",
    "work": "penstock.cli.work:work",
    "pipeline": "penstock.cli.pipeline.commands:pipeline",
    "flow": "penstock.cli.pipeline.flows:flow",
    "verify": "penstock.cli.verify:verify",
    "simulate": "penstock.cli.simulate:simulate",
    "bench": "penstock.cli.bench:bench",
    "migrate": "penstock.cli.store:migrate",
    "store": "penstock.cli.store:store",
    "repair": "penstock.cli.store:repair",
    "copy": "penstock.cli.copies:copy",
    "backup": "penstock.cli.copies:backup",
    "restore": "penstock.cli.copies:restore",
    "context": "penstock.cli.context:context",
    "config": "penstock.cli.config:config",
    "key": "penstock.cli.key:key",
}
#: Advice that only the command line can add.
_MORE_ADVICE: Final[dict[type, str]] = {
    StoreLocked: "If a server has it open, use the server: --url http://127.0.0.1:8080.",
    Unreachable: "`penstock serve` starts a server; --store opens a store without one.",
}


class Program(Family):
    """The top-level group: imports commands on demand and maps outcomes to exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which a message meets them."""
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command and return it."""
        del ctx
        module, _, name = _COMMANDS.get(cmd_name, "").partition(":")
        if not module:
            return None
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; a reader that closed the pipe is not an error."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _abandon_stdout()
            raise click.exceptions.Exit(Exit.BROKEN_PIPE) from None

    def main(self, *args: Any, **options: Any) -> NoReturn:
        """Run a command and exit with the matching code. Never returns."""
        kept = Choices()
        options = {"color": colour(), **options, "standalone_mode": False, "obj": kept}
        options["prog_name"] = options.get("prog_name") or "penstock"
        try:
            code = super().main(*args, **options)
            # Flush here, so that a failing write still counts as an error of the command.
            sys.stdout.flush()
        except BrokenPipeError:
            _abandon_stdout()
            code = Exit.BROKEN_PIPE
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  (the edge of the program)
            code = _report(error, debug=kept.debug)
        sys.exit(code if isinstance(code, int) else Exit.OK)


def _report(error: BaseException, *, debug: bool) -> int:
    """Report the error on stderr and return the exit code."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        click.echo("interrupted", err=True)
        return Exit.INTERRUPTED
    if debug:
        print_exception(error)
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    if isinstance(error, PenstockError):
        more = [text for kind, text in _MORE_ADVICE.items() if isinstance(error, kind)]
        _complain(error.detail, " ".join((error.advice, *more)))
        return exit_of(error)
    _complain(
        f"{type(error).__name__}: {error}",
        "This is unexpected; --debug prints where it happened.",
    )
    return Exit.UNEXPECTED


def _complain(detail: str, advice: str) -> None:
    begin = click.style("error: ", fg="red", bold=True)
    click.echo(begin + safe(detail), err=True, color=colour())
    click.echo(f"       {safe(advice)}", err=True)


def _abandon_stdout() -> None:
    """Redirect stdout to /dev/null: the interpreter's flush at exit would fail again."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    void = os.open(os.devnull, os.O_WRONLY)
    os.dup2(void, descriptor)
    os.close(void)


@click.group(name="penstock", cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@target_options
@click.version_option(VERSION, message="penstock %(version)s", help="Print the version.")
def program() -> None:
    """A durable message queue.

    Commands talk to a server (--url, PENSTOCK_URL, --context) or open a store directly (--store).
    Without any they use the settings: `penstock config` prints them.

    \b
    Examples:
      penstock serve
      penstock publish orders '{"order": 7}' --header amount=250
      penstock queue create billing --filter "topic = 'orders' AND amount >= 100"
      penstock consume billing --follow
      penstock replay billing --where "country = 'AT'" --dry-run

    \b
    Exit codes: 0 done, 1 unexpected, 2 usage, 3 bad input, 4 not found, 5 conflict,
    6 full or busy (try later), 7 unreachable or store unavailable, 8 no access,
    9 verify or simulate found violations, 130 interrupted.
    """


def main() -> NoReturn:
    """Run the command line of this process."""
    for stream in (sys.stdout, sys.stderr):
        # Escape what the terminal's encoding cannot represent instead of failing.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    program.main()
