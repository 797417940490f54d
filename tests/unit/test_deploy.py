"""The files of ``deploy/``: what linters accept, and names that exist."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import compose_spec
import kubernetes_validate
import promql_parser
import pytest
import yaml

from penstock.settings import all_settings

DEPLOY = Path(__file__).parents[2] / "deploy"
SETTINGS = {setting.name for setting in all_settings()}
METRIC = re.compile(r"\b(?:penstock|process|python_gc)_\w+")
#: What Prometheus adds to the name of a histogram or counter.
SUFFIX = re.compile(r"_(?:bucket|count|sum)$")
IMAGE = (DEPLOY / "Containerfile").read_text()
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def expressions() -> Iterator[str]:
    for group in read_yaml(DEPLOY / "alerts.yaml")["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    for panel in json.loads((DEPLOY / "grafana" / "penstock.json").read_text())["panels"]:
        yield from (target["expr"] for target in panel["targets"])


def known_metrics() -> set[str]:
    document = (DEPLOY.parent / "docs" / "metrics.md").read_text()
    process = {"process_resident_memory_bytes", "process_cpu_seconds_total"}
    return {SUFFIX.sub("", name) for name in METRIC.findall(document)} | process


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_expressions_read_metrics_that_exist(expression: str) -> None:
    promql_parser.parse(expression.replace("$__rate_interval", "1m"))
    used = {SUFFIX.sub("", name) for name in METRIC.findall(expression)} - {"penstock"}
    assert used <= known_metrics()
    assert used or 'up{job="penstock"}' in expression


def test_alerts_are_complete() -> None:
    (group,) = read_yaml(DEPLOY / "alerts.yaml")["groups"]
    for rule in group["rules"]:
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_the_dashboard_has_no_overlapping_panels() -> None:
    panels = json.loads((DEPLOY / "grafana" / "penstock.json").read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not taken & cells, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_the_container_file() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run(
        [str(hadolint), DEPLOY / "Containerfile"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests(path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text()))
    assert documents
    for document in documents:
        kubernetes_validate.validate(document, "1.33", strict=True)


def environments() -> Iterator[tuple[str, str]]:
    """Every setting that a file passes on, and where."""
    yield from (("Containerfile", name) for name in re.findall(r"PENSTOCK_\w+", IMAGE))
    for name, service in read_yaml(DEPLOY / "compose.yaml")["services"].items():
        for variable in service.get("environment", {}):
            if variable.startswith("PENSTOCK_"):
                yield f"compose {name}", variable
    for path in MANIFESTS:
        names = re.findall(r"name: (PENSTOCK_\w+)", path.read_text())
        yield from ((path.name, name) for name in names)


def test_every_variable_is_a_setting() -> None:
    seen = list(environments())
    assert len({place for place, _ in seen}) >= 4
    for place, variable in seen:
        assert variable.removeprefix("PENSTOCK_").lower() in SETTINGS, place


def test_the_settings_file_of_the_service() -> None:
    text = (DEPLOY / "systemd" / "penstock.toml").read_text()
    uncommented = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    assert set(tomllib.loads(uncommented)) <= SETTINGS


def test_the_files_that_compose_mounts_exist() -> None:
    compose = read_yaml(DEPLOY / "compose.yaml")
    services = compose["services"]
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            exists = (DEPLOY / source).exists() if source.startswith(".") else False
            assert exists or source in compose["volumes"], volume
        assert set(service.get("depends_on", {})) <= set(services)
    hosts = services["penstock-1"]["environment"]["PENSTOCK_ALLOWED_HOSTS"].split(",")
    (scraped,) = read_yaml(DEPLOY / "prometheus.yaml")["scrape_configs"][0]["static_configs"]
    assert {target.partition(":")[0] for target in scraped["targets"]} <= set(hosts)


@pytest.mark.parametrize("name", ["penstock.service", "penstock-pipeline.service"])
def test_the_units(tmp_path: Path, name: str) -> None:
    """systemd accepts the unit, with a program where it expects one."""
    unit = tmp_path / name
    text = (DEPLOY / "systemd" / name).read_text()
    unit.write_text(text.replace("/opt/penstock/bin/penstock", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


# -- checked by programs of other projects -------------------------------------------------


def test_compose_follows_its_specification() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    validate_compose(text)
    for right, wrong in {
        "127.0.0.1:9090:9090": "nonsense:9090",
        "unless-stopped": "sometimes",
        "service_healthy": "service_well",
    }.items():
        with pytest.raises(ValueError, match=r"services\."):
            validate_compose(text.replace(right, wrong))


def validate_compose(text: str) -> None:
    # It does not resolve aliases.
    compose_spec.PyCompose.from_yaml(yaml.safe_dump(yaml.safe_load(text))).validate()


def promtool(*arguments: object) -> None:
    done = subprocess.run(
        ["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


#: Alert, series and their values per minute, and when it fires.
FIRED = [
    ("PenstockDown", {'up{job="penstock",instance="a"}': "1 1 0 0 0"}, "4m"),
    ("PenstockDown", {'penstock_store_up{job="penstock",instance="a"}': "1 1 0 0 0"}, "4m"),
    (
        "PenstockErrors",
        {'penstock_calls_total{instance="a",verb="publish",outcome="unavailable"}': "0 0 3 3 3"},
        "3m",
    ),
    # The series begins with the first error.
    (
        "PenstockErrors",
        {'penstock_calls_total{instance="a",verb="publish",outcome="error"}': "_ _ 1 1 1"},
        "3m",
    ),
    (
        "PenstockQueueNotConsumed",
        {'penstock_queue_oldest_available_age_seconds{tenant="t",queue="q"}': "0+60x20"},
        "12m",
    ),
    (
        "PenstockDeliveriesFail",
        {'penstock_queue_deliveries{tenant="t",queue="q",state="failed"}': "0 0 1 1"},
        "3m",
    ),
    ("PenstockLeasesLapse", {'penstock_leases_lapsed_total{instance="a"}': "0+5x20"}, "15m"),
    (
        "PenstockKeeperStuck",
        {
            'penstock_keeper_finished_timestamp_seconds{instance="a",keeper="sweep"}': "0x20",
            'penstock_keeper_running{instance="a",keeper="sweep"}': "1x20",
        },
        "6m",
    ),
    (
        "PenstockSlowCommits",
        {
            'penstock_commit_duration_seconds_bucket{instance="a",le="0.1"}': "0+10x20",
            'penstock_commit_duration_seconds_bucket{instance="a",le="1"}': "0+100x20",
            'penstock_commit_duration_seconds_bucket{instance="a",le="+Inf"}': "0+100x20",
        },
        "15m",
    ),
    ("PenstockMemoryBudget", {'penstock_memory_refusals_total{instance="a"}': "0+1x20"}, "9m"),
]


def test_every_alert_fires_when_it_should(tmp_path: Path) -> None:
    """Prometheus evaluates the rules over series that it is given."""
    (group,) = read_yaml(DEPLOY / "alerts.yaml")["groups"]
    assert {alert for alert, _, _ in FIRED} == {rule["alert"] for rule in group["rules"]}
    shutil.copy(DEPLOY / "alerts.yaml", tmp_path)
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": value} for name, value in series.items()],
            "promql_expr_test": [firing(alert, "0m", 0), firing(alert, at, 1)],
        }
        for alert, series, at in FIRED
    ]
    path = tmp_path / "test.yaml"
    path.write_text(
        yaml.safe_dump({"rule_files": ["alerts.yaml"], "evaluation_interval": "1m", "tests": tests})
    )
    promtool("test", "rules", path)


def firing(alert: str, at: str, count: int) -> dict[str, object]:
    found = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)'
    return {"expr": found, "eval_time": at, "exp_samples": [{"labels": "{}", "value": count}]}


def test_prometheus_accepts_its_configuration(tmp_path: Path) -> None:
    for name in ("prometheus.yaml", "alerts.yaml"):
        shutil.copy(DEPLOY / name, tmp_path)
    promtool("check", "config", tmp_path / "prometheus.yaml")


def test_every_alert_is_documented() -> None:
    (group,) = read_yaml(DEPLOY / "alerts.yaml")["groups"]
    documented = (DEPLOY.parent / "docs" / "metrics.md").read_text().partition("## Alerts")[2]
    assert re.findall(r"`(Penstock\w+)`", documented) == [rule["alert"] for rule in group["rules"]]


@pytest.mark.parametrize("is_alive", [True, False])
def test_the_health_check_of_the_image(is_alive: bool, tmp_path: Path) -> None:
    (command,) = re.findall(r"^HEALTHCHECK .*CMD (.*)$", IMAGE, re.MULTILINE)
    assert json.loads(command) == ["python", "/opt/penstock/health.py"]
    assert "COPY deploy/health.py /opt/penstock/health.py" in IMAGE
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", "--json", "--port", "0", "--store", "memory:"],
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        text=True,
    )
    assert process.stdout is not None
    try:
        port = json.loads(process.stdout.readline())["url"].rpartition(":")[2]
        if not is_alive:
            process.terminate()
            process.wait(60)
        done = subprocess.run(
            [sys.executable, DEPLOY / "health.py"],
            env={"PENSTOCK_PORT": port},
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()
    assert (done.returncode, bool(done.stderr)) == ((0, False) if is_alive else (1, True))


def test_a_server_that_stands_by_is_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    names = runpy.run_path(str(DEPLOY / "health.py"))
    asked: list[str] = []

    def answer(role: str, path: str) -> dict[str, str]:
        asked.append(path)
        return {"role": role}

    for role, paths in {"standby": ["/healthz"], "writer": ["/healthz", "/readyz"]}.items():
        asked.clear()
        monkeypatch.setitem(names["main"].__globals__, "ask", partial(answer, role))
        names["main"]()
        assert asked == paths
