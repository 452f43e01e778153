from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from support.expect import PATIENCE_S, checked
from support.programs import run_to_end
from support.real_nodes import loopback_addresses, running
from support.samples import fence_of
from typer.testing import CliRunner

from fencelock import __version__, connect
from fencelock.actors.error import ConfigError, FencelockError
from fencelock.cluster.cli.main import app
from fencelock.cluster.node.config import load, loopback, starting_config
from fencelock.cluster.testing.ports import free_ports

COMMAND = [sys.executable, "-c", "from fencelock.cluster.cli.start import main; main()"]

COMMANDS = """
dev init serve status lock locks who release simulate bench sessions audit
members join leave remove replace transfer backup restore repair
"""

run = CliRunner().invoke


def write_config(folder: Path, protocol: str = "lamport") -> dict[str, str]:
    addresses = loopback_addresses(2)
    (folder / "cluster.toml").write_text(starting_config(addresses, protocol=protocol))
    return addresses


def fencelock(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(folder, *COMMAND[1:], *arguments)


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_to_end([sys.executable, *arguments], cwd=folder)


@contextmanager
def serving(folder: Path, node: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Run a node; return its process and the line that reports that it serves."""
    with subprocess.Popen(
        [*COMMAND, "serve", "--found", "--id", node], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()


def test_help_names_every_command_and_teaches_by_example() -> None:
    out = run(app, ["--help"]).output
    for command in COMMANDS.split():
        assert command in out
    assert "fencelock init --nodes 3" in out


def test_help_of_status_teaches_how_to_see_roles() -> None:
    out = run(app, ["status", "--help"]).output
    assert "--roles" in out
    assert "fencelock status --roles" in out


@pytest.mark.parametrize("command", [("lock",), ("keys", "purge")])
def test_help_breaks_lines_only_where_the_terminal_ends(command: tuple[str, ...]) -> None:
    out = run(app, [*command, "--help"], env={"COLUMNS": "70", "TERM": "dumb"}).output
    lines = [line.strip() for line in out.partition("╭")[0].splitlines()]
    for line, after in pairwise(lines):
        assert not line or not after or len(f"{line} {after.split()[0]}") > 68, line


def test_the_version_is_printed() -> None:
    assert run(app, ["--version"]).output == f"fencelock {__version__}\n"


def test_init_writes_a_usable_file_and_prints_what_to_do_next(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    done = run(app, ["init", "--nodes", "2", "--cluster", "shop", "--config", str(path)])
    assert done.exit_code == 0
    config = load(path)
    assert (config.cluster, config.protocol, config.nodes) == ("shop", "paxos", loopback(2))
    assert path.stat().st_mode & 0o777 == 0o600
    assert config.data is not None
    assert f"fencelock serve --config {path} --id n2" in done.output
    assert "--connect tcp://127.0.0.1:4041,tcp://127.0.0.1:4042 --cluster shop" in done.output


def test_init_overwrites_only_when_forced(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("precious")
    arguments = ["init", "--protocol", "central", "--config", str(path)]
    refused = checked(ConfigError, run(app, arguments).exception)
    assert str(refused) == f"{path} exists already: --force overwrites it"
    assert path.read_text() == "precious"
    done = run(app, [*arguments, "--nodes", "1", "--force"])
    assert done.stdout.startswith(f"Wrote {path}: 1 node of central on this machine.\n")
    assert load(path).protocol == "central"


def test_init_writes_nothing_that_would_not_be_usable(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    ports = "0 to 65532 are allowed: the 3 nodes listen at the ports after it"
    for wrong, text in (
        (["--protocol", "raft"], "protocol"),
        (["--nodes", "1", "--protocol", "lamport"], "nodes"),
        (["--nodes", "65"], "--nodes is 65, 1 to 64 are allowed"),
        (["--port", "65534"], f"--port is 65534, {ports}"),
        (["--port", "-1"], f"--port is -1, {ports}"),
    ):
        error = checked(ConfigError, run(app, ["init", "--config", str(path), *wrong]).exception)
        assert str(error).startswith(text)
    assert not path.exists()


@pytest.mark.parametrize(
    ("protocol", "nodes", "survives"),
    [
        ("paxos", 2, "Mind: all must be up; with 3 nodes one may die."),
        ("paxos", 3, "Locks are granted while at most one of them is down."),
        ("paxos", 5, "Locks are granted while at most 2 of them are down."),
        ("paxos", 6, "2 of them are down, as with 5: the last one adds nothing."),
        ("bakery", 3, "Three of them lead; one leader may die at a time."),
        ("lamport", 3, ""),
    ],
)
def test_init_says_how_to_begin_a_cluster_and_how_many_nodes_may_die(
    protocol: str, nodes: int, survives: str, tmp_path: Path
) -> None:
    path = tmp_path / "cluster.toml"
    arguments = ["--protocol", protocol, "--nodes", str(nodes), "--config", str(path)]
    shown = run(app, ["init", *arguments]).stdout
    first = " --found" if survives else ""
    assert f"serve --config {path} --id n{nodes}{first}\n" in shown
    assert survives in shown
    assert ("Mind" in shown or "of them" in shown) == bool(survives)
    assert ("--found begins the new cluster" in shown) == bool(survives)


def test_an_error_is_one_line_without_a_traceback_and_exits_2(tmp_path: Path) -> None:
    done = fencelock(tmp_path, "serve", "--found", "--id", "n1")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "cluster.toml does not exist: write a starting one with "
        '"fencelock init --nodes 3 --config cluster.toml"\n'
    )


def test_an_unknown_node_is_refused_with_the_nodes_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = fencelock(tmp_path, "serve", "--found", "--id", "n9")
    assert done.returncode == 2
    assert done.stderr == '--id: "n9" is no node of cluster.toml, which knows n1, n2\n'
    missing = checked(ConfigError, run(app, ["serve", "--config", "cluster.toml"]).exception)
    assert str(missing) == "--id: missing; cluster.toml knows n1, n2"


def test_an_address_in_use_is_reported_with_the_next_step(tmp_path: Path) -> None:
    addresses = write_config(tmp_path)
    port = int(addresses["n1"].rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        done = fencelock(tmp_path, "serve", "--found", "--id", "n1")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("nodes.n1.address: ")
    assert addresses["n1"] in line
    advice = "another program listens there: stop it, or change the port in the file"
    assert line.endswith(f"; {advice}")


def test_an_address_of_another_machine_is_reported_with_the_next_step(tmp_path: Path) -> None:
    addresses = {"n1": "tcp://192.0.2.1:4041", "n2": "tcp://192.0.2.2:4041"}
    text = starting_config(addresses)
    (tmp_path / "cluster.toml").write_text(text)
    done = fencelock(tmp_path, "serve", "--found", "--id", "n1")
    assert done.returncode == 2
    assert "without keys a node serves on loopback only" in done.stderr
    assert not (tmp_path / "data").exists()
    (tmp_path / "cluster.toml").write_text(text.replace("# insecure =", "insecure ="))
    done = fencelock(tmp_path, "serve", "--found", "--id", "n1")
    assert done.returncode == 2
    assert "the host in the file must be this machine's own" in done.stderr
    assert 'set listen = "tcp://0.0.0.0:PORT" beside it' in done.stderr


@pytest.mark.parametrize(
    "protocol",
    [
        "paxos",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("bakery", "lamport", "central")),
    ],
)
def test_nodes_serve_show_their_status_and_stop_on_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    addresses = write_config(tmp_path, protocol)
    with serving(tmp_path, "n1") as (first, greeting), serving(tmp_path, "n2") as (second, _):
        assert greeting.startswith(f"n1 listens at {addresses['n1']}: cluster")
        assert f"protocol {protocol}. Mind: " in greeting
        nodes = status_when_ready(tmp_path, addresses)
        assert [(node["node"], node["protocol"]) for node in nodes] == [
            ("n1", protocol),
            ("n2", protocol),
        ]
        table = fencelock(tmp_path, "status")  # It finds them in cluster.toml.
        assert table.returncode == 0
        assert max(map(len, table.stdout.splitlines())) <= 80
        assert f"{protocol} on 2 nodes" in table.stdout
        assert table.stdout.count("ready") == 2
        assert "clock" not in table.stdout
        monkeypatch.chdir(tmp_path)
        roles = run(app, ["status", "--roles"]).stdout
        assert max(map(len, roles.splitlines())) <= 80
        for node in ("n1", "n2"):
            assert re.search(rf"^ *{node} +clock +Clock +\d+ +time \d+ *$", roles, re.MULTILINE)
            assert re.search(rf"^ *{node} +proxy ", roles, re.MULTILINE)
        listed = json.loads(run(app, ["status", "--roles", "--json"]).stdout)
        described = [role["kind"] for node in listed for role in node["roles"]]
        assert described.count("Clock") == 2
        assert set(listed[0]["roles"][0]) == {"name", "kind", "waiting", "summary", "counters"}
        other = fencelock(tmp_path, "status", "--connect", addresses["n1"], "--cluster", "other")
        assert other.returncode == 2
        assert "other" in other.stderr
        first.send_signal(signal.SIGTERM)
        second.send_signal(signal.SIGINT)
        assert (first.wait(PATIENCE_S), second.wait(PATIENCE_S)) == (0, 0)


def test_a_node_whose_output_nobody_reads_serves_and_stops_in_order(tmp_path: Path) -> None:
    """As after ``fencelock serve | head -1``."""
    addresses = write_config(tmp_path, "central")
    reader, writer = os.pipe()
    os.close(reader)
    ends = time.monotonic() + PATIENCE_S
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*COMMAND, "serve", "--id", "n1"], cwd=tmp_path, stdin=pipe, stdout=writer, stderr=pipe
    ) as node:
        os.close(writer)
        opened = Path(f"/proc/{node.pid}/fd")
        try:
            with connect(addresses["n1"], lazy=True) as client:
                assert client.lock("x").acquire(timeout=PATIENCE_S)
            while [os.readlink(one) for one in opened.iterdir()].count(os.devnull) != 1:
                assert time.monotonic() < ends, "the output is discarded, by one descriptor"
            node.send_signal(signal.SIGTERM)
            _, log = node.communicate(timeout=PATIENCE_S)
        finally:
            node.kill()
    assert b"n1 stops: SIGTERM" in log
    assert node.returncode == 0


def test_an_operator_frees_a_holders_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = write_config(tmp_path, "paxos")
    monkeypatch.chdir(tmp_path)  # The commands find the nodes in its cluster.toml.
    with running(load(Path("cluster.toml"))):
        with connect(",".join(addresses.values()), label="web-3:7") as client:
            held = client.lock("orders/42", label="nightly").acquire(timeout=PATIENCE_S)
            fence = fence_of(held)
            who = run(app, ["who", "orders/42"])
            assert "orders/42 is held by web-3:7, nightly" in who.stdout
            assert f"under fence {fence}" in who.stdout
            (listed,) = json.loads(run(app, ["locks", "--json"]).stdout)
            assert (listed["lock"], listed["holder"]["fence"]) == ("orders/42", fence)
            wrong = run(app, ["release", "orders/42", "--fence", "99", "--yes"])
            assert isinstance(wrong.exception, FencelockError)
            assert wrong.stdout == ""
            freed = run(app, ["release", "orders/42", "--fence", str(fence), "--yes"])
            assert (freed.exit_code, freed.stderr) == (0, "")
            assert "was taken from web-3:7, nightly" in freed.stdout
        assert run(app, ["locks"]).stdout == "No lock is held.\n"


def test_a_bug_in_a_role_stops_the_node_with_status_70(tmp_path: Path) -> None:
    write_config(tmp_path)
    broken = (
        "from fencelock.actors.lamport.process import LockProcess as Role; "
        "Role.handle = lambda *_: 1 // 0; "
        "from fencelock.cluster.cli.start import main; main()"
    )
    done = python(tmp_path, "-c", broken, "serve", "--found", "--id", "n1")
    assert done.returncode == 70
    assert "n1 stopped after a fatal error: " in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_an_exception_while_a_node_serves_stops_it_and_the_process(tmp_path: Path) -> None:
    write_config(tmp_path, "central")
    broken = (
        "from fencelock.cluster.cli import serve, start; "
        "serve.spare_the_collector = lambda: 1 // 0; start.main()"
    )
    done = python(tmp_path, "-c", broken, "serve", "--id", "n1")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_a_disk_without_room_at_the_start_gives_status_70(tmp_path: Path) -> None:
    write_config(tmp_path, "paxos")
    full = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)); "
        "from fencelock.cluster.cli.start import main; main()"
    )
    done = python(tmp_path, "-c", full, "serve", "--found", "--id", "n1")
    assert done.returncode == 70  # With 2, systemd would not start it again.
    assert "n1 stopped after a fatal error: " in done.stderr
    assert "cannot be opened: File too large" in done.stderr
    assert "JournalFailedError(" not in done.stderr


def status_when_ready(folder: Path, addresses: dict[str, str]) -> list[dict[str, object]]:
    connect = ",".join(addresses.values())
    nodes: list[dict[str, object]] = []
    for _ in range(20):  # Each try takes as long as a process needs to start.
        done = fencelock(folder, "status", "--connect", connect, "--json")
        nodes = json.loads(done.stdout) if done.returncode == 0 else []
        if len(nodes) == len(addresses) and all(node["ready"] for node in nodes):
            return nodes
    raise AssertionError(f"not ready: {nodes}")


def test_status_without_a_node_exits_1(tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    done = fencelock(tmp_path, "status", "--connect", address, "--timeout", "0.5")
    assert done.returncode == 1
    assert "no node answered within 0.5 s" in done.stderr
    assert address in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("command", "option"), [("simulate", "--seeds"), ("bench", "runtime")])
def test_commands_that_are_loaded_late_are_the_real_ones(command: str, option: str) -> None:
    done = run(app, [command, "--help"])
    assert done.exit_code == 0
    assert option in done.output


def test_ctrl_c_ends_the_script_without_a_traceback_while_it_is_imported(tmp_path: Path) -> None:
    script = "import fencelock_cli; fencelock_cli.main()"
    command = [sys.executable, "-X", "importtime", "-c", script, "status"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "fencelock.actors" in line:
                process.send_signal(signal.SIGINT)
                break
        left = process.stderr.read()
    assert (process.returncode, "Traceback" in left) == (-signal.SIGINT, False)
