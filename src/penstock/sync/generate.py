"""Writes the blocking twins of this package: ``python src/penstock/sync/generate.py``.

The async code is written by hand, its blocking twin is generated: signatures and docstrings are
read from the source of ``penstock.api`` and ``penstock.consume.lease``, and every coroutine
becomes a blocking call. A test generates the files and fails if the checked-in ones differ.

It imports nothing of Penstock, which may not be importable before the twin is up to date. It
needs ruff, as ``make format`` does.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Final, TypeAlias

from msgspec import Struct

__all__ = ["TWINS", "Twin", "generate"]

_HERE: Final = Path(__file__).resolve().parent
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Twin(Struct, frozen=True):
    """One class, and the blocking one that is generated from it."""

    file: str
    source: str
    """The module of the original."""
    of: str
    name: str
    base: str
    inner: str
    """The attribute of the twin that holds the original."""
    by_hand: tuple[str, ...]
    """Members that the base class has already."""
    promise: str
    bases: tuple[tuple[str, str], ...] = ()
    """Module and name of the base classes, whose members it has too."""


TWINS: Final = (
    Twin(
        file="verbs.py",
        source="penstock.api",
        of="QueueApi",
        name="SyncVerbs",
        base="BlockingVerbs",
        inner="_verbs",
        by_hand=("close",),
        promise="The verbs of ``penstock.api`` as blocking calls.",
        bases=(
            ("penstock.consume_api", "ConsumeApi"),
            ("penstock.job_api", "JobApi"),
            ("penstock.webhook_api", "WebhookApi"),
        ),
    ),
    Twin(
        file="lease.py",
        source="penstock.consume.lease",
        of="Lease",
        name="SyncLease",
        base="BlockingLease",
        inner="_lease",
        by_hand=("result",),
        promise="A delivery while a program holds it, for programs that block.",
    ),
    Twin(
        file="lease_batch.py",
        source="penstock.consume.lease_batch",
        of="LeaseBatch",
        name="SyncLeaseBatch",
        base="BlockingLeaseBatch",
        inner="_batch",
        by_hand=(),
        promise="Deliveries that a program holds and settles together, for programs that block.",
    ),
)


def generate(twin: Twin) -> str:
    """The text of the twin's file."""
    tree = _parsed(twin.source)
    original, trees = _class(tree, twin.of), [tree]
    members = list(_members(twin, original))
    for module, name in twin.bases:
        trees.append(_parsed(module))
        members += _members(twin, _class(trees[-1], name))
    body = "\n\n".join(members)
    used = _names(ast.parse(f"class _:\n{body}"))
    lines = [
        f'"""{twin.promise}',
        "",
        f"Generated from ``{twin.source}`` by ``generate.py``: change that, and generate again.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        *_imports(twin, trees, used),
        "",
        f"__all__ = [{twin.name!r}]",
        "",
        *_variables(tree, used),
        f"class {twin.name}({twin.base}):",
        f'    """{ast.get_docstring(original)}"""',
        "",
        body,
    ]
    return _formatted("\n".join(lines))


def _parsed(module: str) -> ast.Module:
    path = _HERE.parents[1].joinpath(*module.split("."))
    return ast.parse(path.with_suffix(".py").read_text())


def _class(tree: ast.Module, name: str) -> ast.ClassDef:
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return found


def _members(twin: Twin, original: ast.ClassDef) -> Iterator[str]:
    for node in original.body:
        if (
            isinstance(node, _Function)
            and not node.name.startswith("_")
            and node.name not in twin.by_hand
        ):
            yield indent(_member(twin, node), "    ")


def _member(twin: Twin, node: _Function) -> str:
    decorators = [ast.unparse(item) for item in node.decorator_list]
    head = "".join(f"@{name}\n" for name in decorators)
    returns = ast.unparse(node.returns) if node.returns is not None else "None"
    if "overload" in decorators:
        return f"{head}def {node.name}({ast.unparse(node.args)}) -> {returns}: ..."
    target = f"self.{twin.inner}.{node.name}"
    given = ", ".join([target, *_given(node.args)])
    if "property" in decorators:
        call = target
    elif isinstance(node, ast.AsyncFunctionDef):
        call = f"self._run({given})"
    elif returns == "BatchConsumption":
        returns, call = "SyncBatchConsumption", f"self._iterate_batches({given})"
    elif returns == "Consumption":
        returns, call = "SyncConsumption", f"self._iterate({given})"
    elif returns == "None":
        # Calls that change something run in the loop's own thread.
        call = f"self._do({given})"
    else:
        call = f"{target}({', '.join(_given(node.args))})"
    verb = "" if returns == "None" else "return "
    return (
        f"{head}def {node.name}({ast.unparse(node.args)}) -> {returns}:\n"
        f'    """{_docstring(node)}"""\n'
        f"    {verb}{call}"
    )


def _given(args: ast.arguments) -> Iterator[str]:
    """The arguments as they are passed on."""
    positional = [*args.posonlyargs, *args.args]
    yield from (item.arg for item in positional if item.arg != "self")
    if args.vararg is not None:
        yield f"*{args.vararg.arg}"
    yield from (f"{item.arg}={item.arg}" for item in args.kwonlyargs)
    if args.kwarg is not None:
        yield f"**{args.kwarg.arg}"


def _docstring(node: _Function) -> str:
    text = ast.get_docstring(node) or ""
    text = text.replace("async for", "for").replace("async with", "with").replace("await ", "")
    return text if "\n" not in text else text.replace("\n", "\n    ") + "\n    "


def _imports(twin: Twin, trees: list[ast.Module], used: set[str]) -> Iterator[str]:
    """Imports of the names that the members use; ruff sorts them."""
    tree = trees[0]
    if list(_variables(tree, used)):
        used = used | {"TypeVar"}
    iterators = ("SyncBatchConsumption", "SyncConsumption")
    base = [twin.base, *(name for name in iterators if name in used)]
    yield f"from penstock.sync.blocking import {', '.join(base)}"
    for node in (node for each in trees for node in ast.walk(each)):
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            names = sorted(alias.name for alias in node.names if alias.name in used)
            if names:
                yield f"from {node.module} import {', '.join(names)}"
    own = sorted(name for name in _constants(tree) if name in used)
    if own:
        yield f"from {twin.source} import {', '.join(own)}"


def _constants(tree: ast.Module) -> set[str]:
    """The module's top-level names, except type variables."""
    return {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and not _is_variable(node)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _variables(tree: ast.Module, used: set[str]) -> Iterator[str]:
    """The type variables that the members use: each module needs its own."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and _is_variable(node) and used & _names(node.targets[0]):
            yield ast.unparse(node)


def _is_variable(node: ast.Assign) -> bool:
    called = node.value.func if isinstance(node.value, ast.Call) else None
    return isinstance(called, ast.Name) and called.id == "TypeVar"


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _formatted(text: str) -> str:
    for command in (("check", "--fix-only", "--select", "I"), ("format",)):
        done = subprocess.run(  # noqa: S603  (our own formatter)
            [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", "x.py", "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text


if __name__ == "__main__":
    for each in TWINS:
        (_HERE / each.file).write_text(generate(each))
