"""Sessions at real nodes: their secret, and sessions that an operator closes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.collected import Lines
from support.expect import PATIENCE_S, checked, present
from support.faces import FACES
from support.hub_station import BareClient
from support.programs import run_to_end
from support.real_nodes import running_nodes, until

import fencelock
import fencelock.aio
from fencelock.actors.api.lock_message import Contender, Inspect, LockStatus, Refused, Release
from fencelock.actors.api.name import SECRET_DIGITS, without_secret
from fencelock.transport.frame import Mismatch, Rejected
from fencelock.verification.bench.members import READY_S, NodeProcesses, leader_among


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    with NodeProcesses(tmp_path_factory.mktemp("secret"), "paxos", 1, durable=True) as members:
        yield members


@pytest.fixture
def client(members: NodeProcesses) -> Iterator[fencelock.Client]:
    with members.ready_client() as client:
        yield client


@contextmanager
def posing_as(name: str, members: NodeProcesses) -> Generator[BareClient]:
    """Connect to a node that runs, under the id ``name``."""
    alive = (one for one, process in members.processes.items() if process.poll() is None)
    address = members.addresses[next(alive)]
    with closing(BareClient(address, members.cluster, name, "attacker")) as client:
        yield client


def holder_seen(members: NodeProcesses, lock: str) -> Contender:
    """Return the holder of ``lock`` as any stranger sees it."""
    with posing_as("stranger", members) as stranger:
        status = stranger.ask(Inspect(lock=lock, session="stranger", request=1))
    return present(checked(LockStatus, status).holder)


def release_of(lock: str, holder: Contender) -> Release:
    """Return the release of ``lock`` that its holder could send."""
    who = {"session": holder.session, "owner": holder.owner}
    return Release(lock=lock, fence=present(holder.fence), request=10**9, **who)


def test_a_client_that_connects_under_anothers_id_does_not_release_its_lock(
    members: NodeProcesses, client: fencelock.Client
) -> None:
    lock = client.lock("mine")
    with lock:
        holder = holder_seen(members, "mine")
        release = release_of("mine", holder)
        with posing_as(holder.node, members) as attacker:
            assert checked(Rejected, attacker.ask(release)).code is Mismatch.ID_TAKEN
        counters = {one.name: one.times for one in client.describe()[0].counters}
        assert counters["wire.client_id_taken"] >= 1
        with posing_as("other", members) as other:  # An honest id does not help either.
            checked(Refused, other.ask(release))
        assert holder_seen(members, "mine").fence == holder.fence
        lock.raise_if_lost()


def test_the_handle_of_a_client_that_ended_is_still_no_session(
    members: NodeProcesses, client: fencelock.Client
) -> None:
    _held = client.lock("seen").acquire()
    holder = holder_seen(members, "seen")
    assert holder.session in {one.id for one in client.sessions()}
    client.close()
    release = release_of("seen", holder)
    with posing_as(holder.node, members) as attacker:
        ends, reply = time.monotonic() + READY_S, attacker.ask(release, 0.5)
        while not isinstance(reply, Refused):  # Its connection is being closed.
            assert time.monotonic() < ends, reply
            reply = attacker.ask(release, 0.5)
    assert "does not exist" in reply.detail


def test_a_session_keeps_its_secret_when_leaders_die_and_clients_reconnect(tmp_path: Path) -> None:
    with (
        NodeProcesses(tmp_path, "paxos", 3, durable=False) as members,
        members.ready_client() as client,
    ):
        hold = present(client.lock("mine", timeout=READY_S).acquire())
        holder = holder_seen(members, "mine")
        members.kill(leader_among(members.wait_until_ready(client)))
        seen = client.status("mine").holder  # Another leader answers, over another link.
        assert seen is not None
        assert seen.fence == holder.fence
        again = holder_seen(members, "mine")
        assert (again.node, again.fence) == (holder.node, holder.fence)
        guessed = f"{holder.session.partition('.')[0]}~{'0' * SECRET_DIGITS}.1"
        with posing_as("other", members) as other:
            for name in (holder.session, guessed):
                release = replace(release_of("mine", holder), session=name)
                checked(Refused, other.ask(release))
        assert hold.held
        hold.release()
        assert client.status("mine").holder is None
    log = "".join(file.read_text(encoding="utf-8") for file in tmp_path.glob("*.log"))
    assert without_secret(log) == log


def test_no_log_line_has_a_secret(members: NodeProcesses, client: fencelock.Client) -> None:
    _held = client.lock("logged").acquire()
    client.evict("logged", fence=present(holder_seen(members, "logged").fence), operator="alice")
    secret = client.sessions()[-1].id
    log = "".join(file.read_text(encoding="utf-8") for file in Path(members.folder).glob("*.log"))
    assert "taken by force" in log
    assert without_secret(log) == log
    assert without_secret(secret) == secret


def test_the_handle_of_a_session_has_all_but_its_secret() -> None:
    secret = "0123456789abcdef" * 2
    assert len(secret) == SECRET_DIGITS
    assert without_secret(f"held by 'x' of 'me~2~{secret}.17'") == "held by 'x' of 'me~2.17'"
    assert without_secret(f"me~{secret}.17") == "me.17"
    assert without_secret("me~2.17") == "me~2.17"
    assert without_secret("n1/5f3a.4") == "n1/5f3a.4"


COMMAND = (sys.executable, "-m", "fencelock", "sessions")


def run(address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ``fencelock sessions`` without a terminal."""
    return run_to_end([*COMMAND, *arguments, "--connect", address], stdin=subprocess.DEVNULL)


def test_a_session_that_an_operator_closes_loses_its_locks_to_the_waiters(
    lines: Lines, tmp_path: Path
) -> None:
    with running_nodes(tmp_path) as nodes:
        address = nodes["n1"].address
        with (
            fencelock.connect(nodes["n2"].address, label="victim") as victim,
            fencelock.connect(nodes["n3"].address, label="waiter") as waiter,
        ):
            hold = present(victim.lock("orders/42").acquire(timeout=PATIENCE_S))
            lost, passed_on = threading.Event(), list[fencelock.Hold | None]()
            hold.on_lost(lambda _: lost.set())
            waits = threading.Thread(
                target=lambda: passed_on.append(
                    waiter.lock("orders/42").acquire(timeout=PATIENCE_S)
                )
            )
            waits.start()
            until(lambda: victim.status("orders/42").waiters)
            listed = json.loads(run(address, "--json").stdout)
            (handle,) = [one["id"] for one in listed if "victim" in one["label"]]

            unconfirmed = run(address, "close", handle)
            assert (unconfirmed.returncode, hold.lost) == (2, False)
            assert "add --yes" in unconfirmed.stderr
            closed = run(address, "close", handle, "--yes", "--operator", "alice")
            assert closed.returncode == 0, closed.stderr
            assert closed.stdout.startswith(f"Session {handle} (")
            assert closed.stdout.endswith("victim) was closed. Its holds and waits: 1.\n")

            assert lost.wait(PATIENCE_S)
            with pytest.raises(fencelock.LockOwnershipLostError, match="an operator ended it"):
                hold.raise_if_lost()
            waits.join(PATIENCE_S)
            (held,) = passed_on
            assert held is not None
            assert held.fence > hold.fence

            again = run(address, "close", handle, "--yes")
            assert again.returncode == 2
            assert f"session '{handle}' is not open" in again.stderr
            (entry,) = waiter.evictions()
            assert (entry.lock, entry.holder.session, entry.holder.times) == ("", handle, 1)
            assert entry.operator.startswith("alice (")
            with victim.lock("orders/43", timeout=PATIENCE_S):  # The client opens another session.
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
        async with fencelock.aio.connect(paxos_addresses, cluster=FACES) as operator:
            with pytest.raises(fencelock.NotHeldError, match=r"session 'nobody\.1' is not open"):
                await operator.close_session("nobody.1", "alice")
            return (await operator.close_session(handle, "alice")).claims

    with (
        fencelock.connect(paxos_addresses, cluster=FACES, label="one victim") as victim,
        fencelock.connect(paxos_addresses, cluster=FACES) as operator,
    ):
        closings: tuple[Callable[[str], int], ...] = (
            lambda handle: asyncio.run(close_by(handle)),
            lambda handle: operator.close_session(handle).claims,
        )
        for close in closings:
            hold = present(victim.lock("closed").acquire(timeout=PATIENCE_S))
            (handle,) = [one.id for one in operator.sessions() if "one victim" in one.label]
            assert close(handle) == 1
            lost = threading.Event()
            hold.on_lost(lambda _, lost=lost: lost.set())  # type: ignore[misc]
            assert lost.wait(PATIENCE_S)
