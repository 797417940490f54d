"""Every Python snippet of the documents runs in a test: here those of reference pages."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import penstock
from examples import proxy
from penstock.filters import explain, parse
from penstock.model.message import Message, MessageId, Offset

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Which test runs the Python of a page.
TESTS = {
    "access.md": "tests/unit/test_doc_snippets.py",
    "coming-from.md": "tests/service/test_coming_from.py",
    "doors/queue-ti.md": "tests/service/test_queue_ti_grpc.py",
    "doors/sqs.md": "tests/doors/sqs/test_page.py",
    "filters.md": "tests/unit/test_doc_snippets.py",
    "flows.md": "tests/pipeline/test_doc_snippets.py",
    "how-to/access-and-tls.md": "tests/service/test_how_to_pages.py",
    "how-to/exactly-once.md": "tests/unit/test_how_to.py",
    "how-to/monitoring.md": "tests/unit/test_how_to.py",
    "how-to/object-store.md": "tests/service/test_how_to_pages.py",
    "how-to/ordering.md": "tests/unit/test_how_to.py",
    "how-to/retries.md": "tests/unit/test_how_to.py",
    "how-to/several-servers.md": "tests/unit/test_how_to.py",
    "how-to/tuning.md": "tests/unit/test_how_to.py",
    "integrations.md": "tests/integrations/test_page.py",
    "lake.md": "tests/pipeline/test_doc_snippets.py",
    "pipeline.md": "tests/pipeline/test_doc_snippets.py",
    "sql.md": "tests/service/test_sql_page.py",
    "tutorial.md": "tests/service/test_tutorial.py",
    "verify.md": "tests/unit/test_doc_snippets.py",
    "webhooks.md": "tests/unit/test_doc_snippets.py",
    "workers.md": "tests/unit/worker/test_docs.py",
}


def blocks(page: str) -> list[str]:
    return BLOCK.findall((DOCS / page).read_text())


async def run(block: str, names: dict[str, Any]) -> None:
    """Run a snippet that may await at its top level."""
    code = compile(block, "snippet", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    if inspect.isawaitable(result):
        await result


def test_the_python_of_every_page_has_a_test() -> None:
    pages = {
        path.relative_to(DOCS).as_posix()
        for path in DOCS.rglob("*.md")
        if path.parent.name != "decisions" and BLOCK.search(path.read_text())
    }
    assert pages == set(TESTS)
    for page, test in TESTS.items():
        assert Path(page).name in (ROOT / test).read_text(), page


async def test_filters() -> None:
    names: dict[str, Any] = {}
    message = Message(
        *(MessageId(0), Offset(0), "orders", 4, 0, 0, None, 0, 0), headers={"country": "FR"}
    )
    check, explanation, _ = blocks("filters.md")
    await run(check, names)
    answer = names["validate"]("a IN (1, b)")
    assert (answer.valid, answer.position, answer.end) == (False, 9, 10)
    found = names["complete"]("topic = 'orders' AND am", 23, headers=["amount"])
    assert (found.start, found.end, found.items[0].text) == (21, 23, "amount")
    await run(explanation, {"message": message})
    text = "amount >= 100 AND country IN ('DE', 'AT')"
    promised = re.findall(r"^# (.*)$", explanation, re.MULTILINE)
    assert [str(explain(parse(text), message))] == promised


async def test_verify() -> None:
    [block] = blocks("verify.md")
    async with penstock.open("memory://") as q:
        await q.publish("orders", b"")
        names: dict[str, Any] = {"q": q}
        await run(block, names)
        assert names["report"].violations == ()


async def test_webhooks() -> None:
    [block] = blocks("webhooks.md")
    async with penstock.open("memory://") as q:
        await q.create_queue("orders", "topic = 'orders'")
        names = {"q": q, "print": str}
        await run(block, names)
        assert (await q.webhook("ops")).queue == "orders"


async def test_access(tmp_path: Path) -> None:
    """Nothing is sent: a connection is opened when it is first used."""
    credentials, behind_a_proxy = blocks("access.md")
    names = {
        "penstock": penstock,
        "url": "http://127.0.0.1:9",
        "fetch_token": lambda: "token",
        "through": proxy.through,
    }
    await run(credentials, names)
    await run(behind_a_proxy, names)
