"""``fencelock sessions close`` over real nodes: the victim's locks go to the next waiters."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.log_lines import Lines, logged_lines
from support.real_nodes import LONG_S, running_nodes

import fencelock
import fencelock.aio
from fencelock.actors.api.name import without_secret

lines = pytest.fixture(logged_lines)

COMMAND = (sys.executable, "-m", "fencelock", "sessions")


def run(address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ``fencelock sessions`` without a terminal."""
    return subprocess.run(
        [*COMMAND, *arguments, "--connect", address],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )


def test_a_session_that_an_operator_closes_loses_its_locks_to_the_waiters(
    lines: Lines, tmp_path: Path
) -> None:
    with running_nodes(tmp_path) as nodes:
        address = nodes["n1"].address
        with (
            fencelock.connect(nodes["n2"].address, label="victim") as victim,
            fencelock.connect(nodes["n3"].address, label="waiter") as waiter,
        ):
            hold = victim.lock("orders/42").acquire(timeout=LONG_S)
            assert hold is not None
            lost, passed_on = threading.Event(), list[fencelock.Hold | None]()
            hold.on_lost(lambda _: lost.set())
            waits = threading.Thread(
                target=lambda: passed_on.append(waiter.lock("orders/42").acquire(timeout=LONG_S))
            )
            waits.start()
            while not victim.status("orders/42").waiters:
                pass
            listed = json.loads(run(address, "--json").stdout)
            (handle,) = [one["id"] for one in listed if "victim" in one["label"]]

            unconfirmed = run(address, "close", handle)
            assert (unconfirmed.returncode, hold.lost) == (2, False)
            assert "add --yes" in unconfirmed.stderr
            closed = run(address, "close", handle, "--yes", "--operator", "alice")
            assert closed.returncode == 0, closed.stderr
            assert closed.stdout.startswith(f"Session {handle} (")
            assert closed.stdout.endswith("victim) was closed. Its holds and waits: 1.\n")

            assert lost.wait(LONG_S)
            with pytest.raises(fencelock.LockOwnershipLostError, match="an operator ended it"):
                hold.raise_if_lost()
            waits.join(LONG_S)
            (held,) = passed_on
            assert held is not None
            assert held.fence > hold.fence

            again = run(address, "close", handle, "--yes")
            assert again.returncode == 2
            assert f"session '{handle}' is not open" in again.stderr
            (entry,) = waiter.evictions()
            assert (entry.lock, entry.holder.session, entry.holder.times) == ("", handle, 1)
            assert entry.operator.startswith("alice (")
            with victim.lock("orders/43", timeout=LONG_S):  # The client opens another session.
                pass
        for node in nodes:
            level, _, text = lines.until(
                lambda line, node=node: line[1] == node and "ended by force" in line[2]  # type: ignore[misc]
            )
            assert level == "WARNING"
            assert text.startswith(f"session {handle} closed: ")
            assert "by 'alice (" in text
        assert [text for _, _, text in lines.values if without_secret(text) != text] == []


def test_both_clients_close_a_session_and_refuse_an_unknown_one(paxos_addresses: str) -> None:
    async def close_by(handle: str) -> int:
        async with fencelock.aio.connect(paxos_addresses, cluster="faces") as operator:
            with pytest.raises(fencelock.NotHeldError, match=r"session 'nobody\.1' is not open"):
                await operator.close_session("nobody.1", "alice")
            return (await operator.close_session(handle, "alice")).claims

    with (
        fencelock.connect(paxos_addresses, cluster="faces", label="one victim") as victim,
        fencelock.connect(paxos_addresses, cluster="faces") as operator,
    ):
        closings: tuple[Callable[[str], int], ...] = (
            lambda handle: asyncio.run(close_by(handle)),
            lambda handle: operator.close_session(handle).claims,
        )
        for close in closings:
            hold = victim.lock("closed").acquire(timeout=LONG_S)
            assert hold is not None
            (handle,) = [one.id for one in operator.sessions() if "one victim" in one.label]
            assert close(handle) == 1
            lost = threading.Event()
            hold.on_lost(lambda _, lost=lost: lost.set())  # type: ignore[misc]
            assert lost.wait(LONG_S)
