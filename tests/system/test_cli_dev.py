"""``fencelock dev`` as a real process, and its view."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from support.statuses import READY

import fencelock
from fencelock.actors.api.message import Contender, LockStatus, NodeStatus
from fencelock.cluster.bench.ports import free_ports
from fencelock.cluster.cli.dev import Above, config_of, drawn, greeting
from fencelock.cluster.settings import DEFAULT_ADDRESS, Target

PATIENCE_S = 60
COMMAND = [sys.executable, "-c", "from fencelock.cluster.cli.main import main; main()", "dev"]
IDLE = replace(
    READY, node="dev", nodes=("dev",), detail="ready, leads", uptime_ms=61_000, master="dev"
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


@pytest.mark.parametrize("data", [None, "kept"])
def test_one_command_serves_and_tells_who_holds_what(tmp_path: Path, data: str | None) -> None:
    (port,) = free_ports(1)
    options = ["--port", str(port), *(("--data", data) if data else ())]
    with subprocess.Popen(
        [*COMMAND, *options], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            lines = process.stdout
            first = lines.readline()
            address = f"tcp://127.0.0.1:{port}"
            where = f"in {data}" if data else "in memory"
            assert first.startswith(f"fencelock dev serves at {address}, locks are {where}. ")
            assert f'connect("{address}")' in first
            lines.readline()
            with fencelock.connect(address, connect_timeout=PATIENCE_S, label="me") as client:
                with client.lock("hello", timeout=PATIENCE_S) as hold:
                    assert lines.readline() == f"hello is held by me under fence {hold.fence}\n"
                assert lines.readline() == "hello is free\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
    assert (tmp_path / "kept").is_dir() == (data is not None)


def test_connect_finds_it_without_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FENCELOCK_CONNECT", raising=False)
    config = config_of(4040, None)
    assert Target.find(None, None)[:2] == (config.nodes["dev"], config.cluster)
    assert config.nodes["dev"] == DEFAULT_ADDRESS
    assert "fencelock.connect()" in next(greeting(config))
    (tmp_path / "cluster.toml").write_text("")
    assert "since connect() reads ./cluster.toml here" in next(greeting(config))


def test_the_view_shows_holders_queues_and_rates_or_how_to_begin() -> None:
    idle = shown(IDLE)
    assert "2 clients, 0 held, 0 waiting; tcp://127.0.0.1:4040 for 1m 1s" in idle
    assert "12 acquires/s" in idle
    assert "No lock is held. In another terminal:" in idle
    busy = shown(dataclasses.replace(IDLE, locks=(HELD,)))
    assert r"orders/\x1b[2J" in busy
    for part in ("web-3", "web-4 500ms", "7", "1 held, 1 waiting"):
        assert part in busy
    assert "No lock is held" not in busy


def test_lines_of_the_log_are_printed_by_the_console_of_the_view() -> None:
    console = Console(file=StringIO(), width=80)
    assert Above(console).write("a [bold]line[/bold]\n")
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue() == "a [bold]line[/bold]\n"
