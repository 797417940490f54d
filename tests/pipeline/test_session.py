"""What Spark's session is made with."""

from __future__ import annotations

import pytest

from penstock.pipeline.session import session_settings

MASTER = "spark.master"
PARTITIONS = "spark.sql.shuffle.partitions"


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")


def test_a_laptop_has_few_partitions() -> None:
    chosen = session_settings(None, {})
    assert (chosen[MASTER], chosen[PARTITIONS]) == ("local[*]", "16")
    assert session_settings("local[2]", {})[PARTITIONS] == "16"


def test_what_is_given_goes_over_everything() -> None:
    chosen = session_settings(None, {PARTITIONS: "3", MASTER: "local[1]"})
    assert (chosen[MASTER], chosen[PARTITIONS]) == ("local[1]", "3")


def test_a_cluster_has_its_own() -> None:
    for chosen in (
        session_settings("spark://host:7077", {}),
        session_settings(None, {MASTER: "yarn"}),
    ):
        assert PARTITIONS not in chosen


@pytest.mark.usefixtures("submitted")
def test_spark_submit_says_where() -> None:
    assert {MASTER, PARTITIONS}.isdisjoint(session_settings(None, {}))
    assert session_settings("local[4]", {})[PARTITIONS] == "16"


def test_a_short_job_starts_faster() -> None:
    chosen = session_settings(None, {}, short=True)
    assert "-XX:TieredStopAtLevel=1" in chosen["spark.driver.extraJavaOptions"]
    assert (chosen["spark.ui.enabled"], chosen[PARTITIONS]) == ("false", "4")
    assert session_settings(None, {"spark.ui.enabled": "true"}, short=True)["spark.ui.enabled"] == (
        "true"
    )
    assert "spark.ui.enabled" not in session_settings("spark://host:7077", {}, short=True)
