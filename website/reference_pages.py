"""Pages of the reference that are made from the code: errors, HTTP, the command line."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any, Final

import click

from penstock.cli.program import program
from penstock.errors import PenstockError
from penstock.model.limits import Limits
from penstock.server.native import ROUTES
from penstock.server.openapi import openapi
from penstock.server.service import ServiceLimits

__all__ = ["commands_page", "errors_page", "http_page"]

_SCHEMA: Final = "#/components/schemas/"
_CODE: Final = re.compile(r"(`+[^`]+`+)")
#: What Markdown would take for a link, emphasis, attributes or the end of a cell.
_MARKUP: Final = re.compile(r"[\\*\[\]{}|]")
#: Replies with these are explained once, not at each call.
_ANY_CALL: Final = frozenset({"400", "401", "403", "404", "406", "415", "429", "500", "503"})


# -- errors --------------------------------------------------------------------------------


def errors_page() -> str:
    """Every error, with its status and what the caller should do."""
    lines = [
        "# Errors",
        "",
        "Every error is a `penstock.PenstockError`. Over HTTP it is a problem document with the",
        "status of this table, whose `type` is made of the name; a client raises the same class.",
        "[Troubleshooting](../troubleshooting.md) has the usual causes.",
        "",
        "| error | status | means | what to do |",
        "|---|---|---|---|",
    ]
    for kind in sorted(set(_kinds(PenstockError)), key=lambda kind: (kind.status, kind.__name__)):
        if kind.__name__.startswith("_"):
            continue
        means = _cell((kind.__doc__ or "").split("\n\n", maxsplit=1)[0])
        lines.append(f"| `{kind.__name__}` | {kind.status} | {means} | {_cell(kind.advice)} |")
    return "\n".join(lines) + "\n"


def _kinds(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
    for child in kind.__subclasses__():
        if child.__module__.startswith("penstock.errors"):
            yield child
            yield from _kinds(child)


# -- HTTP ----------------------------------------------------------------------------------


def http_page() -> str:
    """Every call of the OpenAPI document, and the objects that requests and replies are made of."""
    document = openapi(ROUTES, ServiceLimits(), Limits().payload_bytes)
    lines = [
        "# Calls over HTTP",
        "",
        "Made from the document that every server has at `/openapi.json`. [HTTP](../http.md)",
        "explains formats, headers, retries and limits. Any call may be refused with 400, 401,",
        "403, 404, 406, 415, 429, 500 or 503; [Errors](errors.md) has the problem of each.",
        "`/metrics`, `/healthz`, `/readyz` and the console are not in the document.",
        "",
    ]
    by_tag: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            by_tag.setdefault(operation["tags"][0], []).append(_call(method, path, operation))
    for tag, calls in by_tag.items():
        lines += [f"## {tag.capitalize()}", "", *calls]
    lines += ["## Objects", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += _object(name, schema)
    return "\n".join(lines) + "\n"


def _call(method: str, path: str, operation: dict[str, Any]) -> str:
    lines = [f"### `{method.upper()} {path}`", "", f"{operation['summary']}.", ""]
    facts = [f"Verb: `{operation['operationId']}`"]
    if grant := operation.get("x-grant"):
        action, _, name = grant.partition(":")
        facts.append(f"needs the grant `{action}:{name if name == '*' else '{' + name + '}'}`")
    body = operation.get("requestBody", {}).get("content", {})
    if bodies := {_type(media["schema"]) for media in body.values() if "schema" in media}:
        facts.append(f"takes {' or '.join(sorted(bodies))}")
    refused: list[str] = []
    for status, reply in sorted(operation["responses"].items()):
        if status.startswith("2"):
            content = reply.get("content", {}).values()
            kinds = sorted({_type(media["schema"]) for media in content if "schema" in media})
            facts.append(f"replies {status}{' with ' if kinds else ''}{' or '.join(kinds)}")
        elif status not in _ANY_CALL:
            problems = [name.rpartition(":")[2] for name in reply.get("x-problems", ())]
            refused.append(f"{status} {' or '.join(f'`{name}`' for name in problems)}".strip())
    lines += ["; ".join(facts) + ".", ""]
    if refused:
        lines += [f"Refused also with {', '.join(refused)}.", ""]
    if parameters := operation["parameters"]:
        lines += ["| parameter | in | type | |", "|---|---|---|---|"]
        for item in parameters:
            text = item.get("description", "required" if item.get("required") else "")
            lines.append(f"| `{item['name']}` | {item['in']} | {_type(item['schema'])} | {text} |")
        lines.append("")
    return "\n".join(lines)


def _object(name: str, schema: dict[str, Any]) -> list[str]:
    lines = [f"### {name}", ""]
    if text := schema.get("description"):
        lines += [_prose(text), ""]
    fields = schema.get("properties")
    if not fields:
        kinds = schema.get("enum")
        shown = ", ".join(f"`{kind}`" for kind in kinds) if kinds else _type(schema)
        return [*lines, f"{shown}.", ""]
    required = schema.get("required", [])
    lines += ["| field | type | default | |", "|---|---|---|---|"]
    for field, kind in fields.items():
        default = "required" if field in required else f"`{json.dumps(kind.get('default'))}`"
        note = _prose(kind.get("description", "")).replace("\n", " ")
        lines.append(f"| `{field}` | {_type(kind)} | {default} | {note} |")
    return [*lines, ""]


def _type(schema: dict[str, Any]) -> str:
    """The type in a word or two, with a link to an object."""
    if reference := schema.get("$ref"):
        name = reference.removeprefix(_SCHEMA)
        return f"[{name}](#{name.lower()})"
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return " or ".join(dict.fromkeys(_type(one) for one in schema[choice]))
    kind = schema.get("type", "any value")
    if kind == "array":
        return f"list of {_type(schema.get('items') or {})}"
    if kind == "object" and schema.get("additionalProperties"):
        values = schema["additionalProperties"]
        return f"map to {_type(values if isinstance(values, dict) else {})}"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _prose(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


# -- the command line ----------------------------------------------------------------------


def commands_page() -> str:
    """Every command with its options, as ``--help`` prints them."""
    lines = [
        "# Commands",
        "",
        "What `penstock COMMAND --help` prints. [Command line](../command-line.md) explains how a",
        "command finds its server or store, formats of output, and exit codes. Options that every",
        "command takes, such as `--url` and `--json`, are listed there.",
        "",
    ]
    context = click.Context(program, info_name="penstock")
    for name, command, inner in _commands(program, context):
        lines += [f"## {name}", "", *_command(command, inner)]
    return "\n".join(lines) + "\n"


def _commands(
    group: click.Group, context: click.Context
) -> Iterator[tuple[str, click.Command, click.Context]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None  # It is listed.
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _commands(command, inner)
        elif not command.hidden:
            yield inner.command_path.removeprefix("penstock "), command, inner


def _command(command: click.Command, context: click.Context) -> list[str]:
    usage = " ".join(command.collect_usage_pieces(context))
    text, _, examples = inspect.cleandoc(command.help or "").partition("\b\nExamples:\n")
    lines = ["```", f"{context.command_path} {usage}", "```", "", text.strip(), ""]
    if examples.strip():
        lines += ["```sh", inspect.cleandoc(examples), "```", ""]
    rows = [
        record
        for item in command.params
        if isinstance(item, click.Option) and "--help" not in item.opts
        if (record := item.get_help_record(context)) is not None
    ]
    if rows:
        lines += ["| option | |", "|---|---|"]
        lines += [f"| `{' '.join(names.split())}` | {_cell(text)} |" for names, text in rows]
        lines.append("")
    return lines


def _cell(text: str) -> str:
    """Plain text with code spans, as it is read in a cell of a table."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(
        part if index % 2 else _MARKUP.sub(r"\\\g<0>", part).replace("<", "&lt;")
        for index, part in enumerate(parts)
    )
