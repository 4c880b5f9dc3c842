"""docs/metrics.md, the dashboard and the alerts name exactly the metrics that exist."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedloom.server.metrics.meters import Meters
from fedloom.server.metrics.scrape import Scrape, table

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "fedloom.json"
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
GUIDE = (ROOT / "docs" / "metrics.md").read_text()

yaml = pytest.importorskip("yaml")


def _names():
    """The name of every sample that a server can return."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
    return {
        family.name + suffix
        for family in Scrape(Meters(), {}).collect()
        for suffix in suffixes.get(family.type, ("",))
    }


def _labels():
    """Labels of each sample's name, from the table."""
    found = {}
    for row in re.findall(r"^\| `(\w+)` \| (.*?) \|", table(), re.MULTILINE):
        found[row[0]] = set(re.findall(r"`(\w+)`", row[1]))
    return found


def _panels():
    return [p for p in json.loads(DASHBOARD.read_text())["panels"] if p["type"] != "row"]


def _rules():
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def _expressions():
    shown = [target["expr"] for panel in _panels() for target in panel["targets"]]
    return shown + [rule["expr"] for rule in _rules()]


def _base(name):
    return re.sub("_(bucket|count|sum)$", "", name)


def test_every_query_names_existing_metrics():
    """A panel or alert on a removed metric would silently stay empty."""
    names, labels = _names(), _labels()
    assert len(_expressions()) > 40
    for expression in _expressions():
        asked = set(re.findall(r"\b(?:fedloom|process)_\w+", expression))
        assert asked - names == set(), expression
        for name, matchers in re.findall(r"\b(fedloom_\w+){([^}]*)}", expression):
            wanted = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) - {"instance"}
            assert wanted <= labels[_base(name)], expression


def test_dashboard_is_valid():
    """Unique panels that do not overlap, each with a position, a unit and a query."""
    dashboard, taken = json.loads(DASHBOARD.read_text()), set()
    assert dashboard["uid"] == dashboard["title"] == "fedloom"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    for panel in _panels():
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["targets"]


def test_every_alert_has_advice():
    """In its text and in the guide; names are unique."""
    rules = _rules()
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10
    for rule in rules:
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        notes = rule["annotations"]
        assert notes["summary"].endswith(".")
        assert len(notes["action"]) > 30
        assert f"`{rule['alert']}`" in GUIDE


def test_failing_clients_and_rounds_have_alerts():
    """A round that fails, and a client that fails in rounds that do not."""
    asked = " ".join(rule["expr"] for rule in _rules())
    for name in ("fedloom_clients_failing", 'fedloom_rounds_total{outcome="abandoned"', "paused"):
        assert name in asked


def test_the_guide_has_every_metric():
    """`print(scrape.table())` regenerates the table."""
    assert table().strip() in GUIDE


def test_promtool_accepts_the_rules():
    """The alerts, their tests, and the dashboard's queries."""
    promtool = shutil.which("promtool") or os.environ.get("FEDLOOM_PROMTOOL")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    subprocess.run([promtool, "check", "rules", RULES], check=True, capture_output=True)
    tests = RULES.with_name("rules_test.yml")
    subprocess.run([promtool, "test", "rules", tests], check=True, capture_output=True)


def test_promtool_reads_every_query(tmp_path):
    """As recording rules, because promtool checks no other form."""
    promtool = shutil.which("promtool") or os.environ.get("FEDLOOM_PROMTOOL")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    queries = [e.replace("$__rate_interval", "5m") for e in _expressions()]
    rules = [{"record": f"query:{i}", "expr": query} for i, query in enumerate(queries)]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    command = [promtool, "check", "rules", path]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
