"""Alerts and a dashboard with a real Prometheus; the files of `deploy/`."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support import programs, real_nodes
from support.expect import PATIENCE_S
from support.paths import ROOT
from support.programs import run_to_end, running, until_answered
from support.real_nodes import config_in, measured, until
from typer.testing import CliRunner

import fencelock
from fencelock import NodeRole
from fencelock.cluster.cli.main import app
from fencelock.cluster.node.config import Config, load, parse
from fencelock.cluster.testing.ports import free_ports

DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
PROMETHEUS = DEPLOY / "prometheus"
DASHBOARD = DEPLOY / "grafana" / "fencelock.json"


def documents(path: Path) -> list[Any]:
    programs.package("yaml")
    import yaml  # noqa: PLC0415

    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def loaded(path: Path) -> Any:
    (document,) = documents(path)
    return document


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
    checked = run_to_end([programs.program("promtool"), *check], cwd=PROMETHEUS)
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
        ends = time.monotonic() + PATIENCE_S
        while not self.query(expr):
            assert time.monotonic() < ends, expr
            time.sleep(0.05)  # Prometheus does not report what it scrapes.


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[tuple[Prometheus, ExitStack]]:
    """Return a Prometheus that scrapes a cluster of three nodes, and what stops the nodes."""
    program = programs.program("prometheus")
    with ExitStack() as last, ExitStack() as cluster:
        nodes = cluster.enter_context(real_nodes.running(measured(config_in(tmp_path / "data"))))
        addresses = [node.address for node in nodes.values()]
        client = cluster.enter_context(fencelock.connect(addresses, connect_timeout=PATIENCE_S))
        cluster.enter_context(client.lock("held", timeout=PATIENCE_S))
        scraped = [node.metrics for node in nodes.values()]
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


# The files in deploy/ fit the program: configurations, names, ports and options


KUBERNETES = DEPLOY / "kubernetes" / "fencelock.yaml"


def manifests() -> dict[str, Any]:
    """Return the documents for Kubernetes by their kinds."""
    return {document["kind"]: document for document in documents(KUBERNETES)}


def check_command(words: list[str], config: Config) -> None:
    """Check that the program takes these options, and that it knows the node that they name."""
    shown = CliRunner().invoke(app, [words[0], "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert shown.exit_code == 0
    for word in words[1:]:
        assert not word.startswith("--") or word in shown.stdout, f"{word}: {shown.stdout}"
    if "--id" in words:
        node = words[words.index("--id") + 1]
        assert node in config.nodes or node == "$(POD_NAME)"


def health_check(compose: Any, node: str) -> list[str]:
    """Return the command by which a container's health is checked."""
    kind, *command = compose["services"][node]["healthcheck"]["test"]
    assert kind == "CMD"
    return [str(word) for word in command]


def test_the_health_check_of_compose_knows_a_node_that_is_ready(tmp_path: Path) -> None:
    programs.program("bash")
    compose = loaded(COMPOSE)
    *start, text = health_check(compose, "n1")
    with real_nodes.running(measured(config_in(tmp_path))) as nodes:
        with nodes["n1"] as node:
            port = node.metrics.rpartition(":")[2]
            check = [*start, text.replace("9404", port)]
            until(lambda: subprocess.run(check, check=False, timeout=PATIENCE_S).returncode == 0)
        assert subprocess.run(check, check=False, timeout=PATIENCE_S).returncode


def test_the_services_of_compose_are_the_nodes() -> None:
    compose = loaded(COMPOSE)
    config = load(DEPLOY / "cluster.toml")
    assert config.insecure
    services = compose["services"]
    assert set(services) == {*config.nodes, "client", "network"}
    published = services.pop("network")["ports"]
    assert all(one.startswith("127.0.0.1:") for one in published)  # There are no keys.
    assert not any("ports" in service for service in services.values())
    assert {service["network_mode"] for service in services.values()} == {"service:network"}
    (first, last), *_ = (one.split(":")[1].split("-") for one in published)
    ports = [str(port) for port in range(int(first), int(last) + 1)]
    assert list(config.nodes.values()) == [f"tcp://127.0.0.1:{port}" for port in ports]
    assert len(set(config.metrics.values())) == len(config.nodes)
    for node, address in config.nodes.items():
        assert config.listen_of(node) == address.replace("127.0.0.1", "0.0.0.0")
        assert services[node]["command"][-1] == node
        assert f"/{config.metrics[node].rpartition(':')[2]} " in health_check(compose, node)[-1]
        check_command(services[node]["command"], config)
        assert f"{node}:{config.data}" in services[node]["volumes"]
    assert set(compose["volumes"]) == set(config.nodes)
    environment = services["client"]["environment"]
    assert environment["FENCELOCK_CONNECT"] == ",".join(config.nodes.values())
    assert environment["FENCELOCK_CLUSTER"] == config.cluster


def test_the_manifests_of_kubernetes_belong_together() -> None:
    found = manifests()
    kinds = {"ConfigMap", "Service", "NetworkPolicy", "PodDisruptionBudget", "StatefulSet"}
    assert set(found) == kinds
    labels = {"app.kubernetes.io/name": "fencelock"}
    service, pods = found["Service"]["spec"], found["StatefulSet"]["spec"]
    config = parse(found["ConfigMap"]["data"]["cluster.toml"], Path("/"))
    name = found["StatefulSet"]["metadata"]["name"]
    assert list(config.nodes) == [f"{name}-{number}" for number in range(pods["replicas"])]
    for node, address in config.nodes.items():
        assert address == f"tcp://{node}.{pods['serviceName']}:{service['ports'][0]['port']}"
    assert service["clusterIP"] == "None"
    assert service["selector"] == pods["selector"]["matchLabels"] == labels
    assert pods["template"]["metadata"]["labels"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] < pods["replicas"] / 2
    (container,) = pods["template"]["spec"]["containers"]
    check_command(container["args"], config)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert set(config.metrics.values()) == {f"0.0.0.0:{ports['metrics']}"}
    probes = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("readiness", "liveness")}
    assert probes == {"/ready", "/live"}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["data"] == str(config.data)
    assert mounts["keys"] == str(config.keys)
    given = {one["name"] for one in pods["template"]["spec"]["volumes"]}
    given |= {one["metadata"]["name"] for one in pods["volumeClaimTemplates"]}
    assert given == set(mounts)


def test_a_pod_has_the_keys_of_its_own_node_only_and_no_token() -> None:
    found = manifests()
    config = parse(found["ConfigMap"]["data"]["cluster.toml"], Path("/"))
    pod = found["StatefulSet"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == "keys")
    assert mount["subPathExpr"] == "$(POD_NAME)"
    (keys,) = (one for one in pod["volumes"] if one["name"] == "keys")
    paths = {(one["path"], one["key"]) for one in keys["secret"]["items"]}
    own = {(node, key) for node in config.nodes for key in ("keys.toml", "_server.key")}
    own |= {(node, f"{node}.key") for node in config.nodes}
    assert paths == {(f"{node}/{key}", key) for node, key in own}


def test_a_node_is_reached_by_nodes_clients_and_the_monitoring_only() -> None:
    found = manifests()
    policy = found["NetworkPolicy"]["spec"]
    pods = found["StatefulSet"]["spec"]["template"]
    assert policy["podSelector"]["matchLabels"] == pods["metadata"]["labels"]
    (container,) = pods["spec"]["containers"]
    ports = {port["containerPort"] for port in container["ports"]}
    assert {rule["ports"][0]["port"] for rule in policy["ingress"]} == ports
    assert all(rule["from"] for rule in policy["ingress"])


@pytest.mark.parametrize("version", ["1.29", "1.31"])
def test_the_manifests_fit_the_schemas_of_kubernetes(version: str) -> None:
    """Of an old version and of a newer one."""
    programs.package("kubernetes_validate")
    schemas: Any = importlib.import_module("kubernetes_validate")
    for document in documents(KUBERNETES):
        schemas.validate(document, version, strict=True)
        with pytest.raises(schemas.ValidationError):
            schemas.validate(document | {"metadata": {"nmae": "x"}}, version, strict=True)


def test_the_services_fit_the_schema_of_compose() -> None:
    programs.package("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    checked = run_to_end([*command, str(COMPOSE)])
    assert checked.returncode == 0, checked.stdout


def test_the_unit_of_systemd_is_accepted(tmp_path: Path) -> None:
    text = (DEPLOY / "fencelock@.service").read_text(encoding="utf-8")
    (command,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    program, *words = command.removeprefix("ExecStart=").split()
    check_command([word.replace("%i", "n1") for word in words], load(DEPLOY / "cluster.toml"))
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "fencelock@n1.service"
    unit.write_text(text.replace(program, "/bin/true"))
    verified = run_to_end([analyze, "verify", "--man=no", str(unit)])
    later = "RestartSteps", "RestartMaxDelaySec"  # Of systemd 254.
    complaints = [line for line in verified.stderr.splitlines() if "fencelock" in line]
    assert [line for line in complaints if not any(one in line for one in later)] == []


def test_the_unit_of_systemd_restarts_a_full_disk_but_no_wrong_configuration() -> None:
    lines = (DEPLOY / "fencelock@.service").read_text(encoding="utf-8").splitlines()
    assert {"Restart=on-failure", "RestartPreventExitStatus=2"} <= set(lines)
    assert {"StartLimitIntervalSec=0", "LimitCORE=0", "CapabilityBoundingSet="} <= set(lines)
    assert {"SystemCallFilter=@system-service", "NoNewPrivileges=yes"} <= set(lines)


def test_memory_is_limited_everywhere_to_what_a_flood_and_the_largest_table_need() -> None:
    unit = (DEPLOY / "fencelock@.service").read_text(encoding="utf-8")
    compose = loaded(COMPOSE)
    found = manifests()
    (container,) = found["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert "MemoryMax=3G" in unit.splitlines()
    assert container["resources"]["limits"] == {"memory": "3Gi"}
    assert {compose["services"][node]["mem_limit"] for node in ("n1", "n2", "n3")} == {"3g"}


def test_the_image_has_what_it_copies_and_no_root() -> None:
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert "USER 10001" in lines
    assert 'ENTRYPOINT ["fencelock"]' in lines
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".git", ".venv", "**/keys", "**/*.key", "**/data", "**/*.backup"} <= set(ignored)


def test_nodes_are_reached_by_names_and_bound_to_every_interface(tmp_path: Path) -> None:
    """As in containers."""
    ports = free_ports(3)
    secure = "[security]\ninsecure = true"
    tables = "\n".join(
        f'[nodes.n{port}]\naddress = "tcp://localhost:{port}"\nlisten = "tcp://0.0.0.0:{port}"'
        for port in ports
    )
    config = parse(
        f'cluster = "names"\nprotocol = "paxos"\ndata = "data"\n{tables}\n{secure}', tmp_path
    )
    with real_nodes.running(config) as nodes:
        addresses = [node.address for node in nodes.values()]
        assert addresses == list(config.nodes.values())
        with fencelock.connect(addresses, cluster="names", connect_timeout=PATIENCE_S) as client:
            _held = client.lock("a", timeout=PATIENCE_S).acquire()
            (leader,) = (one for one in client.members().nodes if one.role is NodeRole.LEADER)
            assert leader.endpoint in addresses
