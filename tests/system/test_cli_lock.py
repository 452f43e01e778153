"""``fencelock lock``, as a process, over real nodes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import fencelock
from fencelock.cluster.cli.exit_status import ExitStatus

PATIENCE_S = 30
CLUSTER = "faces"
"""The cluster of the shared nodes."""
COMMAND = (sys.executable, "-m", "fencelock", "lock")
PRINTS = "import os; print(os.environ['FENCELOCK_NAME'], os.environ['FENCELOCK_FENCE'])"
READY = "print('ready', flush=True); sys.stdin.readline()"
WAITS = f"import sys; {READY}"
STUBBORN = f"import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY}"


@pytest.fixture
def client(paxos_addresses: str) -> Iterator[fencelock.Client]:
    with fencelock.connect(paxos_addresses, cluster=CLUSTER, label="the tests") as client:
        yield client


def begin(addresses: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "--connect", addresses, "--cluster", CLUSTER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(addresses: str, *arguments: str) -> tuple[int, str, str]:
    process = begin(addresses, *arguments)
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def holding(addresses: str, *arguments: str) -> subprocess.Popen[str]:
    """Return the command once it runs, and so holds its lock."""
    process = begin(addresses, *arguments)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()
    return process


def ended(process: subprocess.Popen[str]) -> str:
    """Return what the command wrote to standard error, once it has ended.

    Its standard input stays open meanwhile: `WAITS` ends when that is closed.
    """
    process.wait(timeout=PATIENCE_S)
    return process.communicate()[1]


def python(code: str) -> tuple[str, ...]:
    return "--", sys.executable, "-c", code


def test_a_command_learns_its_lock_and_its_fence_and_its_status_is_returned(
    paxos_addresses: str, client: fencelock.Client
) -> None:
    before = client.lock("report")
    with before as hold:
        fence = hold.fence
    code, out, err = run(paxos_addresses, "report", *python(f"{PRINTS}; raise SystemExit(3)"))
    name, later = out.split()
    assert (code, name, err) == (3, "report", "")
    assert int(later) > fence
    assert client.status("report").holder is None


@pytest.mark.parametrize("how", [("--nonblock",), ("--timeout", "0.2")])
def test_a_lock_that_is_held_is_not_had_and_its_holder_is_named(
    paxos_addresses: str, client: fencelock.Client, how: tuple[str, ...]
) -> None:
    with client.lock("busy"):
        code, out, err = run(paxos_addresses, "busy", *how, *python(PRINTS))
    assert (code, out) == (75, "")
    assert err.startswith("busy was not acquired: the tests (")


@pytest.mark.parametrize(
    ("code", "grace"), [(WAITS, "30"), (STUBBORN, "0.1")], ids=["goes", "is killed"]
)
def test_a_command_whose_lock_is_lost_is_stopped(
    paxos_addresses: str, client: fencelock.Client, code: str, grace: str
) -> None:
    process = holding(paxos_addresses, "taken", "--grace", grace, *python(code))
    holder = client.status("taken").holder
    assert holder is not None
    assert holder.fence is not None
    client.evict("taken", holder.fence)
    err = ended(process)
    assert process.returncode == 74
    assert re.search(r"the hold under fence \d+ was taken by '.*'\. Another client may", err)
    assert f"fence {holder.fence}" in err


def test_a_signal_goes_to_the_command_and_the_lock_is_free_after_it(
    paxos_addresses: str, client: fencelock.Client
) -> None:
    process = holding(paxos_addresses, "signalled", *python(WAITS))
    process.send_signal(signal.SIGTERM)
    ended(process)
    assert process.returncode == 128 + signal.SIGTERM
    assert client.status("signalled").holder is None


def test_a_signal_right_after_the_command_began_goes_to_the_command(
    paxos_addresses: str, client: fencelock.Client
) -> None:
    code = "trap 'exit 3' TERM; kill -TERM $PPID; while read x; do :; done; exit 4"
    process = begin(paxos_addresses, "early", "--", "sh", "-c", code)
    ended(process)
    assert process.returncode == 3
    assert client.status("early").holder is None


def test_what_a_command_started_ends_too_if_the_lock_is_lost(
    paxos_addresses: str, client: fencelock.Client
) -> None:
    """The child ignores SIGTERM and keeps the pipe open that `ended` reads to its end."""
    child = "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = holding(paxos_addresses, "family", "--grace", "0.2", *python(code))
    holder = client.status("family").holder
    assert holder is not None
    assert holder.fence is not None
    client.evict("family", holder.fence)
    ended(process)
    assert process.returncode == 74


def test_a_signal_while_it_waits_ends_the_wait(
    paxos_addresses: str, client: fencelock.Client
) -> None:
    with client.lock("awaited"):
        process = begin(paxos_addresses, "awaited", *python(PRINTS))
        while not client.status("awaited").waiters:
            pass
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out) == (128 + signal.SIGTERM, "")
        assert client.status("awaited").waiters == ()


def test_as_many_commands_run_as_there_are_permits(paxos_addresses: str) -> None:
    held = [holding(paxos_addresses, "encoder", "--shared", "2", *python(WAITS)) for _ in range(2)]
    code, _, err = run(paxos_addresses, "encoder", "--shared", "2", "--nonblock", *python(PRINTS))
    assert (code, err) == (75, "encoder was not acquired: all 2 permits are taken\n")
    for process in held:
        process.communicate("go\n", timeout=PATIENCE_S)
        assert process.returncode == 0
    code, _, _ = run(paxos_addresses, "encoder", "--shared", "2", "--nonblock", *python(PRINTS))
    assert code == 0


def test_the_help_names_the_exit_statuses_of_the_command_itself() -> None:
    shown = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True).stdout
    own = (ExitStatus.LOST, ExitStatus.NOT_ACQUIRED, ExitStatus.NO_COMMAND)
    assert {str(status.value) for status in own} == set(re.findall(r"with\s+(\d+)", shown))


def test_without_a_command_nothing_is_locked(paxos_addresses: str) -> None:
    code, _, err = run(paxos_addresses, "x", "--", "no-such-command")
    assert (code, err) == (127, "no-such-command: command not found; x was not acquired\n")


def test_without_a_node_the_lock_is_not_had() -> None:
    printing = python(PRINTS)
    process = subprocess.run(
        [*COMMAND, "x", "--connect", "tcp://127.0.0.1:1", "--connect-timeout", "0.3", *printing],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env=os.environ,
    )
    assert process.returncode == 75
    assert process.stderr.startswith("x was not acquired: no node answered within 0.3 s")
