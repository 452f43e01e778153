"""Objects from a shell: `semaphore`, `rw`, `election`, `latch`, `counter`, `map`; real nodes."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.real_nodes import running_nodes

import fencelock
from fencelock.cluster.cli.exit_status import ExitStatus

PATIENCE_S = 30
WAITS = "import sys; print('ready', flush=True); sys.stdin.readline()"
SHOWS = "import os; print(os.environ['FENCELOCK_NAME'], os.environ['FENCELOCK_FENCE'])"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_nodes(tmp_path_factory.mktemp("nodes")) as nodes:
        yield ",".join(node.address for node in nodes.values())


@pytest.fixture
def client(address: str) -> Iterator[fencelock.Client]:
    with fencelock.connect(address, label="ann") as client:
        yield client


class Shell:
    """Runs `fencelock` with the address of the nodes in its environment."""

    def __init__(self, address: str, folder: Path) -> None:
        self._folder = folder
        self._environment = {**os.environ, "FENCELOCK_CONNECT": address, "COLUMNS": "200"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "fencelock", *arguments],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, says: str = "") -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(says, timeout=PATIENCE_S)
        return process.returncode, out.rstrip("\n"), err.rstrip("\n")

    def plain(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json")[1])

    @contextmanager
    def holding(self, *arguments: str) -> Generator[None]:
        """Run a command that holds something until the end of the block."""
        process = self.start(*arguments, "--", sys.executable, "-c", WAITS)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()
        yield
        process.communicate("\n", timeout=PATIENCE_S)
        assert process.returncode == 0


@pytest.fixture
def shell(address: str, tmp_path: Path) -> Shell:
    return Shell(address, tmp_path)


def python(code: str) -> tuple[str, ...]:
    return "--", sys.executable, "-c", code


def test_a_command_runs_under_a_permit_and_another_must_wait(
    shell: Shell, client: fencelock.Client
) -> None:
    with shell.holding("semaphore", "run", "encoder", "--permits", "1"):
        assert client.semaphore("encoder", 1).status().holder is not None
        code, out, err = shell.run(
            "semaphore", "run", "encoder", "--permits", "1", "-n", *python(SHOWS)
        )
        assert (code, out) == (ExitStatus.NOT_ACQUIRED, "")
        assert err == "encoder was not acquired: all 1 permits are taken"
    assert client.semaphore("encoder", 1).status().holder is None


def test_readers_run_together_and_a_writer_alone(shell: Shell, client: fencelock.Client) -> None:
    with shell.holding("rw", "read", "catalogue"):
        code, out, _ = shell.run("rw", "read", "catalogue", "-n", *python(SHOWS))
        assert (code, out.split()[0]) == (0, "catalogue")
        code, _, err = shell.run("rw", "write", "catalogue", "-n", *python(SHOWS))
        assert code == ExitStatus.NOT_ACQUIRED
        assert err.startswith("catalogue was not acquired: ")
        assert err.endswith(" holds it")
    code, out, _ = shell.run("rw", "write", "catalogue", *python(SHOWS))
    assert code == 0
    assert client.rwlock("catalogue").status().holder is None


def test_an_election_has_a_leader_while_its_command_runs(shell: Shell) -> None:
    assert shell.run("election", "leader", "boss") == (ExitStatus.FAILED, "", "nobody leads boss")
    watching = shell.start("election", "watch", "boss", "--json")
    assert watching.stdout is not None
    try:
        assert json.loads(watching.stdout.readline())["value"] is None
        with shell.holding("election", "lead", "boss", "--value", "10.0.0.7:80"):
            term = json.loads(watching.stdout.readline())
            assert term["value"] == "10.0.0.7:80"
            assert shell.run("election", "leader", "boss") == (0, "10.0.0.7:80", "")
            assert shell.plain("election", "leader", "boss") == term
            code, _, err = shell.run("election", "lead", "boss", "-n", *python(SHOWS))
            assert code == ExitStatus.NOT_ACQUIRED
            assert err.endswith(" holds it")
        assert json.loads(watching.stdout.readline())["value"] is None
    finally:
        watching.terminate()
        watching.communicate(timeout=PATIENCE_S)


def test_a_latch_opens_when_its_count_is_0(shell: Shell) -> None:
    down = ("latch", "down", "migrated/7", "--count", "3")
    assert shell.run(*down) == (0, "2 of 3 left", "")
    code, _, err = shell.run("latch", "wait", "migrated/7", "--count", "3", "--timeout", "0.1")
    assert code == ExitStatus.FAILED
    assert err == "migrated/7 is not open after 0.1 s: 2 of 3 left"
    waiting = shell.start("latch", "wait", "migrated/7", "--count", "3")
    assert shell.plain(*down, "--by", "2") == {"latch": "migrated/7", "left": 0, "of": 3}
    assert waiting.wait(PATIENCE_S) == 0
    waiting.communicate()
    code, _, err = shell.run("latch", "down", "migrated/7", "--count", "4")
    assert code == ExitStatus.REFUSED
    assert "count 3" in err


def test_a_counter_is_read_and_changed(shell: Shell) -> None:
    assert shell.run("counter", "get", "invoices") == (0, "0", "")
    assert shell.run("counter", "add", "invoices") == (0, "1", "")
    assert shell.run("counter", "add", "invoices", "--by", "-3") == (0, "-2", "")
    assert shell.run("counter", "set", "invoices", "-5") == (0, "-5", "")
    assert shell.run("counter", "set", "invoices", "7", "--if", "0") == (
        ExitStatus.FAILED,
        "",
        "invoices is not 0: nothing was changed",
    )
    assert shell.run("counter", "set", "invoices", "7", "--if", "-5") == (0, "7", "")
    assert shell.plain("counter", "get", "invoices") == {"counter": "invoices", "value": 7}
    code, _, err = shell.run("counter", "add", "invoices", "--by", str(1 << 63))
    assert code == ExitStatus.REFUSED
    assert str(1 << 63) in err


def test_entries_are_put_only_under_the_conditions_that_are_given(
    shell: Shell, client: fencelock.Client
) -> None:
    put = ("map", "put", "config", "colour")
    code, version, _ = shell.run(*put, "blue")
    assert code == 0
    entry = client.map("config").get("colour")
    assert entry is not None
    assert (entry.value, entry.version) == (b"blue", int(version))

    assert shell.run(*put, "red", "--if-absent") == (
        ExitStatus.FAILED,
        "",
        "map config has an entry 'colour': nothing was changed",
    )
    code, _, err = shell.run(*put, "red", "--version", str(int(version) + 99))
    assert code == ExitStatus.REFUSED
    assert f"has version {version}" in err
    code, _, err = shell.run(*put, "red", "--version", version, "--if-absent")
    assert (code, err) == (
        ExitStatus.REFUSED,
        "--if-absent and --version exclude each other: leave one out",
    )
    done = shell.run(*put, "-", "--version", version, "--ttl", "60", "--json", says="from a pipe")
    entry = client.map("config").get("colour")
    assert entry is not None
    assert json.loads(done[1]) == {"map": "config", "key": "colour", "version": entry.version}
    assert entry.value == b"from a pipe"
    assert entry.expires is not None


def test_a_watch_prints_the_entries_and_then_each_change(
    shell: Shell, client: fencelock.Client
) -> None:
    seen = client.map("seen")
    first = seen.put("a", b"1")
    watching = shell.start("map", "watch", "seen")
    plain = shell.start("map", "watch", "seen", "--json")
    assert watching.stdout is not None
    assert plain.stdout is not None
    try:
        assert watching.stdout.readline() == f"a: 1 bytes, version {first}\n"
        plain.stdout.readline()
        second = seen.put("a", bytes(1000))
        seen.delete("a")
        assert watching.stdout.readline() == f"a: 1,000 bytes, version {second}\n"
        assert watching.stdout.readline().startswith("a: ended, version ")
        value = base64.b64encode(bytes(1000)).decode()
        assert json.loads(plain.stdout.readline()) == {
            "map": "seen",
            "key": "a",
            "value": value,
            "version": second,
        }
        assert json.loads(plain.stdout.readline())["value"] is None
    finally:
        for process in (watching, plain):
            process.terminate()
            process.communicate(timeout=PATIENCE_S)
