"""Flows: declared in a file, run by ``penstock flow apply``, each row in its target once."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from textwrap import dedent

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from penstock import NewMessage
from penstock.errors import BadInput, PipelineError, UnknownQueue
from penstock.pipeline import Flow, Table, flow_runs
from penstock.pipeline.context import JobOptions, Silent
from penstock.pipeline.flow import load_flows
from penstock.pipeline.jobs import flow as flow_job
from penstock.pipeline.jobs.flow import run_flow
from penstock.pipeline.remote import Server
from penstock.testing.laws import law
from tests.pipeline.hosted import Hosted
from tests.pipeline.jobs import run


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_job, "_PAUSE_S", 0.5)
    monkeypatch.setattr(flow_job, "_LOOK_S", 0.05)


def fill(server: Hosted, values: list[bytes]) -> None:
    server.ask(lambda q: q.create_queue("orders", "topic = 'orders'", max_attempts=2))
    if values:
        server.publish("orders", *map(NewMessage, values))


@law("D1")
@pytest.mark.slow
def test_a_flow_to_a_table_with_a_poison_row(
    spark: SparkSession, server: Hosted, tmp_path: Path, impatient: None
) -> None:
    fill(server, [b"1", b"2", b"three", b"4"])
    flow = Flow(
        name="amounts",
        consume="orders",
        transform=lambda rows: rows.selectExpr("id", "CAST(CAST(value AS string) AS int) AS n"),
        table=f"{tmp_path}/table",
    )
    checkpoints = f"{tmp_path}/checkpoints"
    for turn in range(2):
        summary = run(
            server, spark, run_flow, run=f"run-{turn}", flow=flow, checkpoints=checkpoints
        )
        assert (summary["dead_letters"], summary["lag"]) == (1, 0)
        # More than two, if Spark's reader is slow to give its claims back.
        assert (int(summary["failures"]) >= 2) == (turn == 0)
        server.publish("orders", b"5")
    server.ask(lambda q: q.purge("orders", "available"))
    found = DeltaTable(f"{tmp_path}/table").to_pyarrow_table()
    assert sorted(found.column("n").to_pylist()) == [1, 2, 4, 5]
    records = {one.id: one for one in server.ask(lambda q: q.runs())}
    assert records["run-0"].state == "succeeded"
    assert records["run-0"].summary["rows"] == 3


@pytest.mark.slow
def test_flows_run_together(
    spark: SparkSession, server: Hosted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them publishes, and one fails without ending the other."""
    monkeypatch.setattr(flow_runs, "spark_session", lambda *args, **options: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    fill(server, [b"1", b"2"])
    copies = Flow(
        name="copies",
        consume="orders",
        transform=lambda rows: rows.selectExpr("concat('<', CAST(value AS string), '>') AS value"),
        publish="copies",
    )
    broken = Flow(name="broken", consume="nothing", publish="copies")
    done, failed = flow_runs.run_flows(
        JobOptions(server=Server(server.url)),
        [copies, broken],
        str(tmp_path),
        watcher=Silent(),
        stopping=threading.Event(),
    )
    assert (done.result()["rows"], done.result()["lag"]) == (2, 0)
    assert server.payloads("copies") == Counter([b"<1>", b"<2>"])
    assert isinstance(failed.exception(), UnknownQueue)
    states = {one.job: one.state for one in server.ask(lambda q: q.runs())}
    assert states == {"flow.copies": "succeeded", "flow.broken": "failed"}


def test_a_flow_that_cannot_start_fails_without_a_retry(
    spark: SparkSession, server: Hosted, tmp_path: Path
) -> None:
    flow = Flow(
        name="f", consume="orders", transform=lambda rows: rows.select("nothing"), publish="t"
    )
    with pytest.raises(UnknownQueue):
        run(server, None, run_flow, flow=flow, checkpoints=str(tmp_path))
    fill(server, [])
    with pytest.raises(BadInput, match="'f' cannot start"):
        run(server, spark, run_flow, flow=flow, checkpoints=str(tmp_path))


def test_a_flow_that_fails_without_progress_ends(
    server: Hosted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_job, "_PAUSE_S", 0.001)
    fill(server, [b"1"])
    monkeypatch.setattr(flow_job._FlowRun, "_once", lambda self: "no such host")
    flow = Flow(name="f", consume="orders", publish="t")
    with pytest.raises(PipelineError, match="'f' failed 8 times: no such host"):
        run(server, None, run_flow, flow=flow, checkpoints=str(tmp_path))


def test_flows_are_declared_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "flow.py"
    file.write_text(
        dedent("""
            from penstock.pipeline import Flow, Table

            def cleaned(rows):
                return rows.where("value IS NOT NULL")

            one = Flow(name="one", consume="orders", transform=cleaned, publish="clean")
            two = Flow(name="two", consume="orders", table=Table(path="/t", merge_on=("id",)))
            same = one
        """)
    )
    one, two = load_flows(str(file))
    assert (one.name, one.target) == ("one", "clean")
    assert two.target == Table(path="/t", merge_on=("id",))
    # Spark sends a function that it cannot import to its workers.
    assert one.transform is not None
    assert one.transform.__module__ == "penstock_flow"


def test_the_file_of_the_documentation(tmp_path: Path) -> None:
    page = Path(__file__).parents[2].joinpath("docs", "flows.md").read_text(encoding="utf-8")
    file = tmp_path / "flow.py"
    file.write_text(page.split("```python")[1].split("```")[0])
    flows = load_flows(str(file))
    assert [flow.name for flow in flows] == ["orders-to-lake", "large-orders", "customers"]


@law("E1")
@pytest.mark.parametrize(
    "text, complaint",
    [
        ("x = 1", "no variable that is a Flow"),
        ("a = (", "SyntaxError"),
        ("import no_such_module", "line 2: ModuleNotFoundError"),
        ("a = Flow(name='a', consume='q')", "one target"),
        ("a = Flow(name='a', consume='q', publish='t', table='/t')", "one target"),
        ("a = Flow(name='a' * 101, consume='q', publish='t')", "at most 100"),
        ("a = Flow(name='a b', consume='q', publish='t')", "a b"),
        ("a = Flow(name='a', consume='q', publish='t', transform=3)", "not a function"),
        (
            "a, b = [Flow(name='a', consume='q', publish='t') for _ in 'ab']",
            "two flows with the name 'a'",
        ),
    ],
)
def test_declarations_are_checked(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "flow.py"
    file.write_text(f"from penstock.pipeline import Flow\n{text}\n")
    with pytest.raises(BadInput) as refused:
        load_flows(str(file))
    assert complaint in str(refused.value.detail)
    with pytest.raises(BadInput, match="no file"):
        load_flows(f"{tmp_path}/nothing.py")


@pytest.mark.parametrize(
    "line",
    [
        "penstock.errors.services.PipelineError: Spark did not provide the id of the query.",
        "ValueError: invalid literal for int() with base 10: 'three'",
    ],
)
def test_a_failure_is_told_by_the_line_of_its_error(line: str) -> None:
    """Spark appends a description of the query, whose lines have colons too."""
    text = (
        "An exception was raised by the Python Proxy. Return Message: Traceback (most recent):\n"
        f'  File "gateway.py", line 2506, in _call_proxy\n    raise e\n{line}\n\n'
        "=== Streaming Query ===\nIdentifier: amounts [id = 7afae399]\n"
        "Current Committed Offsets: {}\n\nThread State: RUNNABLE\n"
    )
    assert flow_job.reason_of(text) == line
