"""The alerts and the dashboard of deploy/, with a real Prometheus that scrapes real nodes."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support import optional
from support.paths import ROOT
from support.real_nodes import LONG_S, running_nodes
from support.servers import running, until_answered

import fencelock
from fencelock.cluster.testing.ports import free_ports

PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "fencelock.json"


def loaded(path: Path) -> Any:
    optional.package("yaml")
    import yaml  # noqa: PLC0415

    return yaml.safe_load(path.read_text(encoding="utf-8"))


def rules() -> dict[str, str]:
    (group,) = loaded(PROMETHEUS / "alerts.yml")["groups"]
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


def targets() -> Iterator[tuple[str, str]]:
    """Yield each panel's title with each of its expressions, with the variables filled in."""
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            expr = target["expr"].replace("$cluster", "fencelock")
            yield panel["title"], expr.replace("$__rate_interval", "1m")


def always(expr: str) -> str:
    """Return ``expr`` with comparisons that give 0 or 1 rather than drop what is not so."""
    return re.sub(r" (==|<=|<|>) ", r" \1 bool ", " ".join(expr.split()))


@pytest.mark.parametrize(
    "check",
    [
        ["check", "config", "prometheus.yml"],
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts.test.yml"],
    ],
)
def test_promtool_accepts_the_configuration_and_the_alerts(check: list[str]) -> None:
    checked = subprocess.run(
        [optional.program("promtool"), *check],
        cwd=PROMETHEUS,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_dashboard_has_no_panel_without_a_query_and_no_two_in_one_place() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    for panel in panels:
        assert panel["type"] == "row" or (panel["targets"] and panel["description"])


class Prometheus:
    """A running server, with the configuration of deploy/ and other targets."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **arguments: str) -> Any:
        asked = f"{self.url}{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(asked, timeout=10) as reply:
            return json.load(reply)["data"]

    def query(self, expr: str) -> list[Any]:
        return list(self.get("/api/v1/query", query=expr)["result"])

    def until(self, expr: str) -> None:
        """Return when ``expr`` has a result."""
        ends = time.monotonic() + LONG_S
        while not self.query(expr):
            assert time.monotonic() < ends, expr
            time.sleep(0.05)  # Prometheus tells nobody what it scrapes.


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[tuple[Prometheus, ExitStack]]:
    """Return a Prometheus that scrapes a cluster of three nodes, and what stops the nodes."""
    program = optional.program("prometheus")
    with ExitStack() as last, ExitStack() as cluster:
        nodes = cluster.enter_context(running_nodes(tmp_path / "data"))
        addresses = [node.address for node in nodes.values()]
        client = cluster.enter_context(fencelock.connect(addresses, connect_timeout=LONG_S))
        cluster.enter_context(client.lock("held", timeout=LONG_S))
        scraped = [node.serve_metrics("127.0.0.1:0", "fencelock") for node in nodes.values()]
        config = loaded(PROMETHEUS / "prometheus.yml")
        config["global"] = {"scrape_interval": "200ms", "evaluation_interval": "200ms"}
        config["rule_files"] = [str(PROMETHEUS / "alerts.yml")]
        config["scrape_configs"][0]["static_configs"][0]["targets"] = scraped
        file = tmp_path / "prometheus.yml"
        file.write_text(json.dumps(config))  # JSON is YAML.
        (port,) = free_ports(1)
        server = Prometheus(port)
        command = [program, f"--config.file={file}", f"--web.listen-address=127.0.0.1:{port}"]
        storage = f"--storage.tsdb.path={tmp_path / 'tsdb'}"
        process = last.enter_context(running([*command, storage], tmp_path))
        until_answered(lambda: server.get("/api/v1/rules"), process, OSError)
        server.until('count(count_over_time(up{job="fencelock"}[1m]) >= 3) == 3')
        yield server, cluster


def test_a_real_prometheus_has_a_result_for_every_alert_and_panel_and_sees_nodes_stop(
    prometheus: tuple[Prometheus, ExitStack],
) -> None:
    server, cluster = prometheus
    unanswered = [name for name, expr in rules().items() if not server.query(always(expr))]
    unanswered += [title for title, expr in targets() if not server.query(always(expr))]
    # Those of other protocols stand beside those of paxos.
    exprs = [*rules().values(), *(expr for _, expr in targets())]
    metrics = set(re.findall(r"\b(?:fencelock|process)_\w+", " ".join(exprs)))
    unknown = {name for name in metrics if not server.query(name)}
    assert (unanswered, unknown) == ([], {"fencelock_local_holds", "fencelock_local_waits"})
    assert server.query("sum(fencelock_leader)")[0]["value"][1] == "1"
    assert server.query("max(fencelock_holds)")[0]["value"][1] == "1"
    assert server.query('sum(up{job="fencelock"})')[0]["value"][1] == "3"
    cluster.close()
    server.until('count(ALERTS{alertname="FencelockNodeDown"}) == 3')
