"""What a program may rely on: the names, the errors, and the first example."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from pathlib import Path
from typing import Any, Final

import pytest

import penstock
from penstock import Broker, errors

#: A name that leaves this list breaks somebody's program.
PUBLIC: Final = {
    "Ack",
    "App",
    "Backoff",
    "Broker",
    "BrokerOptions",
    "Client",
    "ClientOptions",
    "Context",
    "Delivery",
    "EngineOptions",
    "Extend",
    "Lease",
    "LeaseBatch",
    "Limits",
    "Message",
    "Nack",
    "NewMessage",
    "Ordering",
    "Outgoing",
    "PenstockError",
    "QueuePolicy",
    "Reject",
    "Release",
    "ReplaySource",
    "Retry",
    "RetryPosition",
    "Start",
    "State",
    "TopicPolicy",
    "QueueApi",
    "connect",
    "errors",
    "open",
    "sync",
}
#: What a broker has that is not awaited.
NOT_AWAITED: Final = {
    "consume",
    "consume_batches",
    "engine",
    "for_tenant",
    "keepers",
    "options",
    "tenant",
}


def public_members() -> dict[str, Any]:
    return {
        name: inspect.getattr_static(Broker, name)
        for name in dir(Broker)
        if not name.startswith("_")
    }


def test_the_public_names() -> None:
    assert set(penstock.__all__) == PUBLIC
    assert list(penstock.__all__) == sorted(penstock.__all__)
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None


def test_a_star_brings_the_public_names_only() -> None:
    space: dict[str, Any] = {}
    exec("from penstock import *", space)
    assert space.keys() - {"__builtins__"} == PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC - {"errors", "sync"}))
def test_every_public_name_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(penstock, name))


@pytest.mark.parametrize("name", sorted(public_members()))
def test_every_verb_is_async_and_says_what_it_does(name: str) -> None:
    member = public_members()[name]
    assert inspect.getdoc(member), f"{name} has no docstring"
    if name in NOT_AWAITED:
        assert not inspect.iscoroutinefunction(member)
    else:
        assert inspect.iscoroutinefunction(member), f"{name} is not async"


@pytest.mark.parametrize("name", sorted(public_members()))
def test_every_verb_is_annotated(name: str) -> None:
    member = public_members()[name]
    function: Any = member.fget if isinstance(member, property) else member
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in list(signature.parameters.values())[1:]:
        assert parameter.annotation is not inspect.Parameter.empty, parameter.name


def test_the_package_is_typed() -> None:
    assert penstock.__file__ is not None
    assert (Path(penstock.__file__).parent / "py.typed").is_file()


# -- errors ----------------------------------------------------------------------------


def all_errors() -> list[type[penstock.PenstockError]]:
    return [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_says_what_to_do(kind: type[penstock.PenstockError]) -> None:
    assert issubclass(kind, penstock.PenstockError)
    assert inspect.getdoc(kind)
    assert kind.title
    assert kind.advice.endswith(".")
    assert 400 <= kind.status < 600


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_the_tree_at_the_head_of_the_module_has_the_status(
    kind: type[penstock.PenstockError],
) -> None:
    lines = [line.split() for line in str(errors.__doc__).splitlines()]
    (line,) = [words for words in lines if kind.__name__ in words[:4]]
    statuses = [word for word in line if word.isdigit()]
    assert statuses in ([], [str(kind.status)])


def test_no_error_is_outside_the_tree() -> None:
    found = {
        name
        for name, member in vars(errors).items()
        if isinstance(member, type) and issubclass(member, Exception)
    }
    assert found == set(errors.__all__)


# -- the first example -----------------------------------------------------------------


def example() -> str:
    """The code in the package's docstring."""
    _, _, code = str(importlib.import_module("penstock").__doc__).partition("::\n\n")
    return textwrap.dedent(code)


async def test_the_example_of_the_package_runs(tmp_path: Path) -> None:
    code = example()
    assert "rocksdb:///data/penstock" in code
    url = f"rocksdb://{tmp_path}/store"
    body = textwrap.indent(code.replace("rocksdb:///data/penstock", url), "    ")
    space: dict[str, Any] = {"penstock": penstock}
    exec(f"async def run():\n{body}", space)
    await space["run"]()
    async with penstock.open(url) as q:
        stats = await q.stats("billing")
        assert (stats.done, stats.depth, stats.acks) == (1, 0, 1)
        (entry,) = (await q.read_log(payloads=True)).entries
        assert entry.payload == b'{"order":7}'
        assert entry.message.headers == {"amount": 250}
