"""The files of ``deploy/``: what linters accept, and names that exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    image = (DEPLOY / "Containerfile").read_text()
    yield from (("Containerfile", name) for name in re.findall(r"PENSTOCK_\w+", image))
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
