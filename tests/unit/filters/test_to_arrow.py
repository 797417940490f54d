from __future__ import annotations

import io

import pytest

from penstock.filters import parse

pa = pytest.importorskip("pyarrow")

from penstock.filters.to_arrow import (  # noqa: E402
    HEADERS_TYPE,
    METADATA_SCHEMA,
    Columns,
    batch_of,
    to_arrow,
)


def test_many_filters_over_one_batch(message) -> None:
    rows = [message(f"t{n % 3}", amount=n, country="DE" if n % 2 else "FR") for n in range(100)]
    rows.append(message("t0"))
    columns = Columns(batch_of(rows))
    for text in ("topic = 't0' AND amount >= 50", "country IN ('DE')", "TRUE", "amount / 0 > 1"):
        filter_ = parse(text)
        verdicts = to_arrow(filter_.tree, columns).to_pylist()
        assert [verdict is True for verdict in verdicts] == [filter_.matches(row) for row in rows]


def test_no_rows() -> None:
    columns = Columns(batch_of([]))
    assert to_arrow(parse("a = 1 OR TRUE OR lower(b) LIKE 'x%'").tree, columns).to_pylist() == []


def test_a_slice_of_a_batch(message) -> None:
    batch = batch_of([message(a=n) for n in range(10)]).slice(3, 4)
    verdicts = to_arrow(parse("a >= 5").tree, Columns(batch)).to_pylist()
    assert verdicts == [False, False, True, True]


def test_the_batch_survives_parquet(message) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    batch = batch_of([message(a=1, b="x"), message(c=1.5, d=True), message()])
    assert batch.schema == METADATA_SCHEMA
    assert batch.schema.field("headers").type == HEADERS_TYPE
    file = io.BytesIO()
    parquet.write_table(pa.Table.from_batches([batch]), file)
    (again,) = parquet.read_table(file).to_batches()
    assert again.to_pylist() == batch.to_pylist()
    assert to_arrow(parse("a = 1 OR d").tree, Columns(again)).to_pylist() == [True, True, None]
