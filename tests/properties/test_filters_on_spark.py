"""R1: a filter as a Spark column has the verdict of every other compiler, NULL included.

A Spark job takes as long for one filter as for many, so each example is many filters over many
rows. What Spark compiles to Java and what it interprets are two implementations of the same
column; both are asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from hypothesis import Phase, given, settings
from pyspark.sql import DataFrame, SparkSession

from penstock.filters import Filter, parse
from penstock.filters import tree as t
from penstock.filters.parse import parse_tree
from penstock.filters.to_arrow import Columns, batch_of, to_arrow
from penstock.filters.to_arrow.many import ManyFilters
from penstock.filters.to_python import to_python
from penstock.filters.to_spark import matches, to_spark
from penstock.filters.to_text import to_text
from penstock.filters.values import evaluate
from penstock.model.message import Message
from penstock.pipeline.router import routed
from penstock.testing.laws import law
from tests import spark_session
from tests.properties.test_filters import EDGES, FLOATS, messages, refer, trees

#: Spark interprets a column over rows that it holds already. It compiles it otherwise, many
#: together only if they are no whole stage, which has a bound.
COMPILING = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.optimizer.excludedRules": (
        "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
    ),
}
MESSAGE = {
    "id": 1,
    "offset": 1,
    "topic": "orders",
    "priority": 4,
    "published_at": 1_700_000_000_000,
    "deliver_at": 1_700_000_000_000,
    "expires_at": None,
    "size": 100,
    "checksum": 0,
}


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    return spark_session.test_session()


@contextmanager
def compiled(spark: SparkSession) -> Iterator[None]:
    """Let Spark compile what it computes, as it does for rows that come from outside."""
    for key, value in COMPILING.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in COMPILING:
            spark.conf.unset(key)


def log_table(rows: Sequence[Message]) -> pa.Table:
    """``rows`` as the pipeline's ``log`` table has them."""
    batch = batch_of(rows)
    columns = {name: batch.column(name) for name in batch.schema.names}
    micros = pc.multiply(columns.pop("published_at"), 1000)
    columns["timestamp"] = pc.cast(micros, pa.timestamp("us", "UTC"))
    columns["priority"] = pc.cast(columns["priority"], pa.int32())
    return pa.table(columns)


def verdicts(spark: SparkSession, conditions: Sequence[t.Condition], table: pa.Table) -> list[Any]:
    """The verdicts of each condition, row by row, from one job."""
    frame: DataFrame = spark.createDataFrame(table)
    columns = [to_spark(condition).alias(f"c{n}") for n, condition in enumerate(conditions)]
    found = frame.select(columns).toArrow()
    return [found.column(n).to_pylist() for n in range(len(conditions))]


def by_the_router(
    spark: SparkSession, filters: dict[str, Filter], table: pa.Table
) -> dict[str, list[int]]:
    """The rows that go to each queue."""
    numbered = table.append_column("offset", pa.array(range(len(table)), pa.int64()))
    found = routed(spark.createDataFrame(numbered), filters).collect()
    return {row["queue"]: row["offsets"] for row in found}


def message_of(case: dict[str, Any]) -> Message:
    return Message(**MESSAGE | case.get("message", {}), headers=case.get("headers", {}))


def golden() -> list[dict[str, Any]]:
    paths = sorted((files("penstock.filters") / "cases").iterdir(), key=lambda path: path.name)
    texts = [path.read_text(encoding="utf-8") for path in paths if path.name.endswith(".yaml")]
    return [case for text in texts for case in yaml.safe_load(text) if "expect" in case]


def agree(spark: SparkSession, conditions: Sequence[t.Condition], rows: Sequence[Message]) -> None:
    """Python, Arrow, many filters at once and Spark say what the reference says."""
    table = log_table(rows)
    (batch,) = table.to_batches()
    filters = {f"q{n:03}": Filter(to_text(condition)) for n, condition in enumerate(conditions)}
    pairs = ManyFilters(filters).match(batch)
    true = set(zip(pairs.rows.tolist(), pairs.filters.tolist(), strict=True))
    on_spark = verdicts(spark, conditions, table)
    of_queue = by_the_router(spark, filters, table)
    for n, condition in enumerate(conditions):
        expected = [refer(condition, row) for row in rows]
        is_true = [verdict is True for verdict in expected]
        assert on_spark[n] == expected, condition
        assert to_arrow(condition, Columns(batch)).to_pylist() == expected, condition
        assert list(map(to_python(condition), rows)) == is_true, condition
        assert [(row, n) in true for row in range(len(rows))] == is_true, condition
        # What has a key goes to every queue: only the broker knows which value is the newest.
        taken = [row for row in range(len(rows)) if is_true[row] or rows[row].key is not None]
        assert of_queue.get(f"q{n:03}", []) == taken, condition


def examples(count: int) -> tuple[list[t.Condition], list[Message]]:
    """Random filters and rows, as many of each."""
    pairs: list[tuple[t.Condition, Message]] = []

    @settings(deadline=None, max_examples=count, database=None, phases=[Phase.generate])
    @given(trees, messages())
    def collect(condition: t.Condition, row: Message) -> None:
        pairs.append((condition, row))

    collect()
    return [condition for condition, _ in pairs], [row for _, row in pairs]


def test_golden_cases(spark: SparkSession) -> None:
    cases = golden()
    conditions = [parse_tree(case["filter"]) for case in cases]
    with compiled(spark):
        found = verdicts(spark, conditions, log_table([message_of(case) for case in cases]))
    wrong = [
        (case["filter"], found[n][n])
        for n, case in enumerate(cases)
        if found[n][n] is not case["expect"]
    ]
    assert not wrong


@law("R1")
def test_every_compiler_agrees_where_spark_interprets(spark: SparkSession) -> None:
    agree(spark, *examples(80))


@law("R1")
def test_every_compiler_agrees_where_spark_compiles(spark: SparkSession) -> None:
    with compiled(spark):
        agree(spark, *examples(40))


NUMBERS = [*EDGES, *FLOATS, -1e300, math.inf, -math.inf, math.nan]
BOUNDS = [0, 2**53 + 1, -(2**53) - 1, t.INT64_MAX, t.INT64_MIN, 0.5, -1.5, 2.0**63, -1e300, 1e300]


def test_numbers_compare_by_exact_value(spark: SparkSession) -> None:
    signs: list[t.CompareOperator] = ["=", "<>", "<", "<=", ">", ">="]
    a, b = t.Header("a"), t.Header("b")
    constants = [t.Integer(n) if type(n) is int else t.Float(float(n)) for n in BOUNDS]
    conditions: list[t.Condition] = [t.Compare(sign, a, b) for sign in signs]
    conditions += [t.Compare(sign, a, bound) for sign in signs for bound in constants]
    pairs = [{"a": x, "b": y} for x in NUMBERS for y in NUMBERS]
    agree(spark, conditions, [message_of({"headers": headers}) for headers in pairs])


LARGE = [
    # As deep as a filter may be, with operands that could each be of four types.
    "a" + " + coalesce(a, b)" * 20 + " > 0",
    "b" + " + coalesce(b, a) * 1" * 10 + " > 16",
    "lower(" * 20 + "c" + ")" * 20 + " = c",
    # And as wide.
    "coalesce(" + "d, " * 190 + "a) >= 1",
    "coalesce(" + "-d, " * 60 + "-b) < 0",
    " OR ".join(["a + b = 2.5"] * 30),
    # What an engine that backtracks takes for ever for.
    "c LIKE '" + "a%" * 25 + "c'",
    "c LIKE '" + "%_a" * 14 + "%b'",
    # What one that recurses has no stack for.
    "c LIKE '" + "_" * 4_000 + "'",
    "c LIKE '" + "a_" * 2_000 + "'",
    "c LIKE '%" + "a_" * 1_000 + "%b'",
    "c LIKE '" + "%a_" * 1_300 + "%'",
    "c LIKE '" + "%a" * 2_000 + "'",
]
LARGE_ROWS = [
    {"a": 1, "b": 1.5, "c": "a" * 30 + "b"},
    {"a": 2**62, "b": 2**40, "c": "ab" * 2_000},
    {"a": 0.5, "b": -1, "c": "ab" * 1_999 + "ac"},
    {"a": -(2**62), "b": 0, "c": "x" + "aa" * 2_000 + "b"},
    {"a": "x", "c": 1},
]


def test_no_filter_is_too_large_for_spark(spark: SparkSession) -> None:
    rows = [message_of({"headers": headers}) for headers in LARGE_ROWS]
    conditions = [parse_tree(text) for text in LARGE]
    expected = [[evaluate(condition, row) for row in rows] for condition in conditions]
    assert all(True in row or False in row for row in expected)
    with compiled(spark):
        assert verdicts(spark, conditions, log_table(rows)) == expected


def test_matches_is_never_null(spark: SparkSession) -> None:
    rows = [message_of({"headers": headers}) for headers in ({"a": 1}, {"a": "x"}, {})]
    frame = spark.createDataFrame(log_table(rows))
    chosen = frame.select(matches(parse("a = 1")).alias("true"), matches(parse("a <> 1")))
    neither = (False, False)
    assert [tuple(row) for row in chosen.collect()] == [(True, False), neither, neither]
    assert frame.where(matches(parse("a = 1"))).count() == 1
    assert frame.where(matches(parse("NOT a = 2"))).count() == 1
