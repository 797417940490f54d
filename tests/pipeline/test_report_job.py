"""The report: its tables say what happened, and its page shows them and loads nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from penstock import NewMessage
from penstock.errors import BadInput
from penstock.model.delivery import Ack, Nack, Reject
from penstock.pipeline.jobs.archive import archive
from penstock.pipeline.jobs.report import report
from penstock.pipeline.report.fingerprints import fingerprint, pattern
from penstock.testing.laws import law
from tests.pipeline.hosted import HOUR_MS, Hosted
from tests.pipeline.jobs import run


@pytest.fixture
def busy(server: Hosted) -> Hosted:
    """Twenty messages: half are acked after 40 ms, some fail, some wait."""
    server.ask(lambda q: q.create_queue("billing", "topic = 'orders'", max_attempts=2))
    server.ask(lambda q: q.create_queue("audit"))
    server.publish("orders", *[b"x" * 100] * 20)
    server.advance(2_000)
    good = server.claim("billing", 10, "fast")
    server.advance(40)
    server.ask(lambda q: q.settle("billing", [Ack(d.receipt) for d in good]))
    bad = server.claim("billing", 4, "slow")
    server.advance(9_000)
    server.ask(
        lambda q: q.settle(
            "billing",
            [
                Reject(bad[0].receipt, "order 1 is <broken>"),
                Reject(bad[1].receipt, "order 22 is <broken>"),
                Nack(bad[2].receipt, "timeout after 30 s", delay_ms=0),
                Nack(bad[3].receipt, None, delay_ms=0),
            ],
        )
    )
    return server


def table(folder: Path, name: str) -> Any:
    return pd.read_parquet(folder / "tables" / f"{name}.parquet")


class Page(HTMLParser):
    """What the page has, and whether it is well formed enough to close what it opens."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [str(v) for name, v in attrs if name in ("src", "href", "xlink:href")]
        if tag not in ("meta", "br", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_tables_say_what_happened(busy: Hosted, spark: SparkSession, tmp_path: Path) -> None:
    """All tables, the page and its record, of one report: each is several jobs of Spark."""
    out = tmp_path / "report"
    summary = run(busy, spark, report, output=str(out))
    assert (summary["messages"], summary["failures"], summary["acked"]) == (20, 2, 10)
    _check_tables(out)
    _check_page(out)
    (record,) = busy.ask(lambda q: q.runs("report"))
    assert record.report == str(out / "index.html")


def _check_tables(out: Path) -> None:
    topics = table(out, "topics")
    assert (topics["messages"].sum(), topics["bytes"].sum()) == (20, 2_000)
    assert set(topics["period"]) == {"current"}

    activity = table(out, "activity").groupby("queue").sum(numeric_only=True)
    counts = ["arrivals", "claims", "acks", "nacks", "failures", "change"]
    assert activity.loc["billing", counts].tolist() == [20, 14, 10, 2, 2, 8]
    assert activity.loc["audit", "change"] == 20

    latency = table(out, "latency").set_index(["queue", "kind"])
    assert latency.loc[("billing", "wait"), "p50"] == 2_000
    assert latency.loc[("billing", "work"), "p50"] == 40
    assert latency.loc[("billing", "work"), "max"] == 9_000

    failures = table(out, "failures").set_index("pattern")
    assert failures.loc["order <n> is <broken>", ["count", "failed"]].tolist() == [2, 2]
    assert failures.loc["timeout after <n> s", "failed"] == 0
    assert len(failures.loc["order <n> is <broken>", "messages"]) == 2

    consumers = table(out, "consumers")
    assert consumers["consumer"].tolist() == ["slow", "fast"]
    assert consumers.set_index("consumer").loc["slow", "not_acked"] == 4


def _check_page(out: Path) -> None:
    text = (out / "index.html").read_text()
    page = Page(text)
    assert page.open == []
    # Nothing is loaded: the script and the style are inside.
    assert page.sources == []
    assert not re.search(
        r"@import|url\(|fetch\(|XMLHttpRequest|<(script|link|img)[^>]* (src|href)", text
    )
    # What others wrote is text, never markup.
    assert "<broken>" not in text
    assert "order 22 is <broken>" in page.text
    assert f"penstock pipeline replay billing --fingerprint {_fingerprint(out)}" in page.text


def _fingerprint(out: Path) -> str:
    failures = table(out, "failures").set_index("pattern")
    return str(failures.loc["order <n> is <broken>", "fingerprint"])


def test_a_period_is_compared_with_the_one_before(
    busy: Hosted, spark: SparkSession, tmp_path: Path
) -> None:
    """Two days, of which the second is reported; what came after it is left out."""
    busy.advance(24 * HOUR_MS)
    busy.publish("orders", *[b"x"] * 30)
    until = busy.clock.now() + 1_000
    busy.advance(48 * HOUR_MS)
    busy.publish("orders", *[b"x"] * 5)
    run(busy, spark, report, output=str(tmp_path), until_ms=until)
    topics = table(tmp_path, "topics").groupby("period")["messages"].sum()
    assert topics.to_dict() == {"previous": 20, "current": 30}
    text = (tmp_path / "index.html").read_text()
    assert "30 messages were published, 50 % more than in the day before." in text
    # Published since, and one failure to claim them: the broker says what is waiting.
    assert re.search(r"<h3>audit</h3><ul><li>55 wait and no consumer has claimed any", text)
    # The sketches of both periods can be put together.
    rows = spark.read.parquet(str(tmp_path / "tables/latency.parquet"))
    (row,) = (
        rows.where("queue = 'billing' AND kind = 'work'")
        .selectExpr("kll_sketch_get_n_bigint(kll_merge_agg_bigint(sketch)) AS n")
        .collect()
    )
    assert row["n"] == 14


def test_a_report_of_nothing(server: Hosted, spark: SparkSession, tmp_path: Path) -> None:
    assert run(server, spark, report, output=str(tmp_path), period_s="all")["messages"] == 0
    assert "Nothing has been published yet" in (tmp_path / "index.html").read_text()


def test_what_only_the_lake_has_is_in_it(busy: Hosted, spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    run(busy, spark, archive, lake=lake)
    busy.ask(lambda q: q.delete_queue("audit"))
    busy.ask(lambda q: q.delete_queue("billing"))
    busy.forget()
    assert busy.ask(lambda q: q.log_start()) > 0
    summary = run(busy, spark, report, run="run-2", lake=lake, period_s="all")
    assert summary["failures"] == 2
    assert summary["messages"] == 21
    assert (lake / "reports" / "index.html").exists()


def test_a_transition_that_the_lake_renumbered_counts_once(
    server: Hosted, spark: SparkSession, tmp_path: Path
) -> None:
    """A queue that was deleted begins a new history, which the lake appends to the old one."""
    lake = tmp_path / "lake"
    server.publish("orders", b"x")
    for number in range(2):
        server.ask(lambda q: q.create_queue("billing", start="earliest"))
        server.ask(lambda q: q.route("billing"))
        (delivery,) = server.claim("billing", 1, "worker")
        server.advance(10)
        server.ask(lambda q, d=delivery: q.settle("billing", [Ack(d.receipt)]))  # type: ignore[misc]
        run(server, spark, archive, run=f"archive-{number}", lake=lake)
        if not number:
            server.ask(lambda q: q.delete_queue("billing"))
    run(server, spark, report, run="run-2", lake=lake)
    activity = table(lake / "reports", "activity").groupby("queue").sum(numeric_only=True)
    assert activity.loc["billing", ["claims", "acks"]].tolist() == [2, 2]


@law("E1")
def test_nowhere_to_go(server: Hosted) -> None:
    with pytest.raises(BadInput, match="--output"):
        run(server, None, report)


def test_errors_that_differ_in_names_and_numbers_are_one(spark: SparkSession) -> None:
    errors = [
        "KeyError: 'customer-17'",
        "KeyError: 'customer-18'",
        "timeout after 30.5 s at 2026-11-15T10:00:00Z",
        "timeout after 2 s at 2026-11-16T11:30:00Z",
        "job 123e4567-e89b-12d3-a456-426614174000 failed\nTraceback 1",
        "job 00000000-e89b-12d3-a456-426614174999 failed\nTraceback 2",
        None,
        "",
    ]
    frame = spark.createDataFrame([(n, e) for n, e in enumerate(errors)], "n int, error string")
    shown = frame.select(pattern(frame.error).alias("p"), fingerprint(frame.error).alias("f"))
    found = [(row["p"], row["f"]) for row in shown.collect()]
    assert found[0::2] == found[1::2]
    assert len({name for _, name in found}) == 4
    assert found[0][0] == "KeyError: '…'"


@law("T1")
def test_a_page_compares_tenants_by_their_own_credentials(
    spark: SparkSession, tmp_path: Path
) -> None:
    server = Hosted(f"rocksdb://{tmp_path}/store", auth=True).start()
    try:
        keys = {
            tenant: server.run(server.keys.create(tenant, ["admin:*"])).key
            for tenant in ("default", "shop", "blog")
        }
        for tenant, count in (("shop", 30), ("blog", 10)):
            broker = server.broker.for_tenant(tenant)
            server.run(broker.create_queue("posts", "topic = 'posts'", max_attempts=1))
            server.run(broker.publish_batch("posts", [NewMessage(b"x")] * count))
            for delivery in server.run(broker.claim("posts", limit=5)):
                error = "it is <broken>" if tenant == "shop" else None
                server.run(broker.settle("posts", [Reject(delivery.receipt, error)]))
        output = tmp_path / "report"
        summary = run(
            server,
            spark,
            report,
            credential=keys["default"],
            output=str(output),
            tenants={tenant: keys[tenant] for tenant in ("blog", "shop")},
        )
        assert (summary["tenants"], summary["messages"], summary["failures"]) == (2, 40, 10)
        page = Page((output / "index.html").read_text())
        assert page.sources == ["shop/index.html", "blog/index.html"]
        assert "2 tenants published 40 messages, shop 75 % of them" in page.text
        rows = pd.read_parquet(output / "tables" / "tenants.parquet").set_index("tenant")
        assert rows["messages"].to_dict() == {"blog": 10, "shop": 30}
        for tenant, count in (("shop", 30), ("blog", 10)):
            text = (output / tenant / "index.html").read_text()
            assert f"{count} messages were published" in text
            assert ("&lt;broken&gt;" in text) == (tenant == "shop")
            # The console of a tenant shows its own.
            stored = server.run(server.broker.for_tenant(tenant).report())
            assert stored is not None
            assert stored.page == text
            (own,) = server.run(server.broker.for_tenant(tenant).runs())
            assert (own.job, own.state) == ("report", "succeeded")
        assert server.run(server.broker.report()) is None
    finally:
        server.stop()


@law("E1")
def test_a_lake_of_several_tenants_has_a_place_for_the_name(server: Hosted, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"\{tenant\}"):
        run(server, None, report, lake=tmp_path, output=str(tmp_path), tenants={"shop": "k"})
    with pytest.raises(BadInput, match="--output"):
        run(server, None, report, lake=f"{tmp_path}/{{tenant}}", tenants={"shop": "k"})
