"""``fencelock dev`` as a real process, and its view."""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import IO, Any

import pytest
from msgspec.structs import replace
from rich.console import Console
from support.expect import PATIENCE_S
from support.programs import Child, run_to_end
from support.samples import READY
from typer.testing import CliRunner

import fencelock
from fencelock.actors.api.cluster_message import NodeStatus
from fencelock.actors.api.lock_message import Contender, LockStatus
from fencelock.actors.effect import Effects
from fencelock.actors.error import ConfigError
from fencelock.actors.message import Address, Instant
from fencelock.actors.paxos.failure_detector import FailureDetector
from fencelock.cluster.cli.dev import (
    SILENT,
    Above,
    Looks,
    config_of,
    drawn,
    greeting,
    in_words,
    plain,
)
from fencelock.cluster.cli.exit_status import ExitStatus
from fencelock.cluster.cli.main import app
from fencelock.cluster.client.settings import DEFAULT_ADDRESS, Target
from fencelock.cluster.node.config import Config
from fencelock.cluster.testing.ports import free_ports

COMMAND = [sys.executable, "-c", "from fencelock.cluster.cli.start import main; main()", "dev"]
IDLE = replace(
    READY, node="dev", nodes=("dev",), detail="ready, leads", uptime_ms=61_000, leader="dev"
)
HELD = LockStatus(
    lock="orders/\x1b[2J",
    holder=Contender("", "s.1", "t", 7, 2_000, "web-3"),
    waiters=(Contender("", "s.2", "t", None, 500, "web-4"),),
    waits_for=(),
)


def shown(status: NodeStatus, width: int = 80) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(drawn(status, {"acquires": 12.0}, 2, "tcp://127.0.0.1:4040"))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@contextmanager
def running(folder: Path, *options: str) -> Generator[tuple[IO[str], str]]:
    """Run the command, and yield its output and its address; stop it with Ctrl-C afterwards."""
    port = free_ports(3)[0]
    with Child(*COMMAND[1:], "--port", str(port), *options, cwd=folder) as process:
        try:
            yield process.lines, f"tcp://127.0.0.1:{port}"
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("data", [None, "kept"])
def test_one_command_serves_and_shows_who_holds_what(tmp_path: Path, data: str | None) -> None:
    options = ("--data", data) if data else ()
    with running(tmp_path, *options) as (lines, address):
        first = lines.readline()
        where = f"in {data}" if data else "in memory"
        assert first.startswith(f"fencelock dev serves at {address}, locks are {where}. ")
        assert f'connect("{address}")' in first
        lines.readline()
        with fencelock.connect(address, connect_timeout=PATIENCE_S, label="me") as client:
            with client.lock("hello", timeout=PATIENCE_S) as hold:
                assert lines.readline() == f"hello is held by me under fence {hold.fence}\n"
            assert lines.readline() == "hello is free\n"
    assert (tmp_path / "kept").is_dir() == (data is not None)


@pytest.mark.parametrize("protocol", ["paxos", "bakery", "lamport", "central"])
def test_three_nodes_of_each_protocol_serve_in_one_process(tmp_path: Path, protocol: str) -> None:
    with running(tmp_path, "--nodes", "3", "--protocol", protocol) as (lines, address):
        first, port = lines.readline(), int(address.rpartition(":")[2])
        last = f"tcp://127.0.0.1:{port + 2}"
        assert first.startswith(f"fencelock dev serves at {address} to {last}, locks are in memory")
        assert lines.readline().startswith(f"3 nodes of {protocol} in one process: ")
        with (
            fencelock.connect(last, connect_timeout=PATIENCE_S) as client,
            client.lock("hello", timeout=PATIENCE_S) as hold,
        ):
            assert hold.fence > 0
        assert {status.protocol for status in client_statuses(address)} == {protocol}
    assert list(tmp_path.iterdir()) == []


def client_statuses(address: str) -> tuple[fencelock.NodeStatus, ...]:
    with fencelock.connect(address, connect_timeout=PATIENCE_S) as client:
        return client.describe()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--protocol", "raft"), "--protocol is raft, and must be one of bakery, central, "),
        (
            ("--port", "65534", "--nodes", "3"),
            "--port is 65534, and 3 nodes need ports up to 65536",
        ),
        (
            ("--redis", "--redis-port", "65535", "--nodes", "3"),
            "--redis-port is 65535, and 3 nodes need ports up to 65537",
        ),
    ],
)
def test_impossible_arguments_are_refused_with_a_reason(
    options: tuple[str, ...], text: str
) -> None:
    done = CliRunner().invoke(app, ["dev", *options])
    assert isinstance(done.exception, ConfigError)
    assert text in str(done.exception)


def test_a_port_that_is_taken_is_named_with_what_to_do(tmp_path: Path) -> None:
    with running(tmp_path) as (lines, address):
        lines.readline()
        port = address.rpartition(":")[2]
        second = [*COMMAND, "--port", port]
        done = run_to_end(second)
        assert done.returncode == 2
        assert f"cannot listen on '{address}': Address already in use" in done.stderr
        assert done.stderr.count(address) == 1
        assert "Does `fencelock dev` run already?" in done.stderr


def test_a_store_that_saw_fences_in_memory_accepts_those_of_a_folder(tmp_path: Path) -> None:
    fences: list[int] = []
    for options in ((), ("--data", "kept"), ("--data", "kept")):
        with (
            running(tmp_path, *options) as (_, address),
            fencelock.connect(address, connect_timeout=PATIENCE_S) as client,
            client.lock("hello", timeout=PATIENCE_S) as hold,
        ):
            fences.append(hold.fence)
    assert fences == sorted({*fences})


def test_a_folder_that_lost_its_journal_founds_no_second_cluster(tmp_path: Path) -> None:
    with running(tmp_path, "--data", "kept") as (lines, _):
        assert lines.readline()
    (journal,) = (tmp_path / "kept").rglob("*.journal")
    journal.unlink()
    (port,) = free_ports(1)
    command = [*COMMAND, "--port", str(port), "--data", "kept"]
    done = run_to_end(command, cwd=tmp_path)
    assert done.returncode == 2
    assert "--data: kept is not empty, but has no cluster" in done.stderr
    assert "fencelock dev serves" not in done.stdout


def test_plain_lines_show_the_count_of_an_object_that_cannot_be_held(tmp_path: Path) -> None:
    with running(tmp_path) as (lines, address):
        lines.readline()
        lines.readline()
        with fencelock.connect(address, connect_timeout=PATIENCE_S, label="me") as client:
            latch = client.latch("go", 2, keep_s=0)
            latch.count_down()
            assert lines.readline() == "latch:go: 1 of 2 left\n"
            with client.lock("hello", timeout=PATIENCE_S) as hold:
                assert lines.readline() == f"hello is held by me under fence {hold.fence}\n"
                latch.count_down()
                assert lines.readline() == "latch:go is no longer in use\n"


def test_plain_lines_show_each_holder_with_its_share_and_the_number_of_waiters() -> None:
    first, second = (Contender("", f"s.{n}", "t", n, 2_000, f"web-{n}", times=n) for n in (1, 2))
    shared = LockStatus(
        lock="semaphore\x1fpens",
        holder=first,
        waiters=(),
        waits_for=(),
        permits=3,
        holders=(first, second),
    )
    assert in_words(shared) == (
        "semaphore:pens is held by web-1 (1 of 3) under fence 1 and web-2 (2 of 3) under fence 2"
    )
    awaited = LockStatus(
        lock="barrier\x1fstart",
        holder=None,
        waiters=(first, second),
        waits_for=(),
        permits=3,
        left=1,
    )
    assert in_words(awaited) == "barrier:start: 1 of 3 left, 2 wait"
    assert in_words(replace(shared, holder=None, holders=())) == "semaphore:pens is free"


def test_connect_needs_no_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FENCELOCK_CONNECT", raising=False)
    config = config_of(4040, None)
    assert Target.find(None, None)[:2] == (config.nodes["dev"], config.cluster)
    assert config.nodes["dev"] == DEFAULT_ADDRESS
    assert "fencelock.connect()" in next(greeting(config, None))
    (tmp_path / "cluster.toml").write_text("")
    assert "since connect() reads ./cluster.toml here" in next(greeting(config, None))


def test_the_view_shows_holders_queues_and_rates_or_how_to_begin() -> None:
    idle = shown(IDLE)
    assert "2 clients, 0 held, 0 waiting; tcp://127.0.0.1:4040 for 1m 1s" in idle
    assert "12 acquires/s" in idle
    assert "No lock is held. In another terminal:" in idle
    busy = shown(replace(IDLE, locks=(HELD,)))
    assert r"orders/\x1b[2J" in busy
    for part in ("web-3", "web-4 500ms", "7", "1 held, 1 waiting"):
        assert part in busy
    assert "No lock is held" not in busy


def test_lines_of_the_log_are_printed_by_the_console_of_the_view() -> None:
    console = Console(file=StringIO(), width=80)
    assert Above(console).write("a [bold]line[/bold]\n")
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue() == "a [bold]line[/bold]\n"


def test_a_node_that_does_not_answer_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    config, output = config_of(free_ports(1)[0], None), StringIO()
    with fencelock.Node.start(config, "dev", found=True) as node:
        view = plain(Console(file=output), Looks({"dev": node}), "")
        with monkeypatch.context() as patch:
            patch.setattr("fencelock.cluster.cli.dev.DESCRIBE_S", 0)
            next(view)
        assert SILENT in output.getvalue()
        next(view)
        assert output.getvalue().count(SILENT) == 1
    next(view)  # It was killed at the prompt.
    assert output.getvalue().count(SILENT) == 2
    assert Looks({}).next() is None


def test_dev_ends_when_its_node_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    handle, served = FailureDetector.handle, list[str]()

    def fail_once_it_serves(
        role: FailureDetector, sender: Address, event: Any, now: Instant
    ) -> Effects:
        if served:
            raise RuntimeError("planted")
        return handle(role, sender, event, now)

    def leave_logs_alone(*_: object, **__: object) -> None:
        pass

    def note(config: Config, data: Path | None) -> Iterator[str]:
        served.append(config.cluster)
        return greeting(config, data)

    monkeypatch.setattr(FailureDetector, "handle", fail_once_it_serves)
    monkeypatch.setattr("fencelock.cluster.cli.dev.greeting", note)
    monkeypatch.setattr("fencelock.cluster.log.set_up", leave_logs_alone)
    ended = CliRunner().invoke(app, ["dev", "--port", str(free_ports(1)[0])])
    assert ended.exit_code == ExitStatus.BUG
    assert "dev stopped after a fatal error" in ended.stderr
    assert "RuntimeError('planted'" in ended.stderr
