"""Forked processes, and the end of a process: what they may use, and what they leave behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.expect import PATIENCE_S, present
from support.own_role import Counter
from support.programs import forks, in_child, refusal, run_to_end
from support.real_nodes import loopback_addresses, running_nodes

from fencelock import (
    Acquire,
    ClosedError,
    LockOwnershipLostError,
    Node,
    NotHeldError,
    ReadClock,
    Release,
)
from fencelock.actors.session.holds import HoldState
from fencelock.cluster.node.config import Config, parse, starting_config
from fencelock.testing import LocalCluster

SESSION_S = 15
"""How long the cluster keeps the holds of a node that did not stop."""


@forks
def test_a_future_that_was_asked_before_a_fork_is_refused_after_it(cluster: LocalCluster) -> None:
    client = cluster.connect()
    holder, waiter = client.proxy, cluster.connect().proxy
    fence = holder.ask(Acquire(lock="x")).fence
    future = waiter.ask(Acquire(lock="x"), block=False)

    in_child(lambda: "ask anew after a fork" in refusal(ClosedError, future.get))
    holder.ask(Release(lock="x", fence=fence))
    assert future.get(timeout=PATIENCE_S).fence > fence


@forks
def test_a_hold_is_lost_to_a_forked_process_and_stays_its_parents(cluster: LocalCluster) -> None:
    hold = present(cluster.connect().lock("x").acquire())

    def seen() -> bool:
        facts = (hold.state, hold.lost, hold.held, hold.suspect, hold.remaining, hold.deadline)
        text = refusal(LockOwnershipLostError, hold.raise_if_lost)
        lost = (HoldState.LOST, True, False, False, 0.0, None)
        return "connect anew after a fork" in text and facts == lost

    in_child(seen)
    assert (hold.lost, hold.held) == (False, True)
    hold.raise_if_lost()


@forks
def test_a_child_waits_for_no_thread_of_its_parent(cluster: LocalCluster) -> None:
    client = cluster.connect()
    hold = present(client.lock("x").acquire())
    free, again = client.lock("y", duration=60), client.rwlock("z")
    refused: list[tuple[type[Exception], Callable[[], object]]] = [
        (ClosedError, lambda: hold.on_lost(print)),
        (ClosedError, hold.release),
        (ClosedError, free.renew),
        (ClosedError, free.release),
        (ClosedError, again.write().downgrade),
        (NotHeldError, free.raise_if_lost),
        (NotHeldError, again.read().raise_if_lost),
    ]

    def all_refused() -> bool:
        signal.alarm(PATIENCE_S)  # Its default action ends the process.
        free.cancel()
        return all(refusal(error, use) for error, use in refused)

    lock: Any = free
    with lock._registry._guard:  # As if another thread acquired or released.
        in_child(all_refused)
    assert hold.held


def test_a_hold_of_a_closed_client_is_not_held(cluster: LocalCluster) -> None:
    client = cluster.connect()
    hold = present(client.lock("x").acquire())
    client.close()
    assert (hold.held, hold.lost, hold.remaining) == (False, False, 0.0)
    with pytest.raises(NotHeldError, match="closed"):
        hold.raise_if_lost()


def config(folder: Path) -> Config:
    text = starting_config(loopback_addresses())
    (folder / "cluster.toml").write_text(text)
    return parse(text, folder)


HOLD_AND_LEAVE = """
import sys
from fencelock import Acquire, Node, connect

nodes = [Node.start(sys.argv[1], name, found=True) for name in sys.argv[3:]]
nodes[0].proxy.ask(Acquire(lock="x"), timeout=60)
client = connect(nodes[1].address)
client.lock("y").acquire()
exec(sys.argv[2])
"""
ENDS = {"pass": 0, "sys.exit(0)": 0, "raise ValueError(1)": 1}
"""The ends of a program, with the exit status of its process."""


@pytest.mark.parametrize("end", ENDS)
def test_nodes_that_were_never_stopped_leave_no_lock_held(tmp_path: Path, end: str) -> None:
    settings = config(tmp_path)
    program = [sys.executable, "-c", HOLD_AND_LEAVE, str(tmp_path / "cluster.toml"), end]
    ended = subprocess.run(
        [*program, *settings.nodes], timeout=PATIENCE_S, capture_output=True, check=False
    )
    assert ended.returncode == ENDS[end], ended.stderr
    with ExitStack() as nodes:
        node, *_ = [nodes.enter_context(Node.start(settings, name)) for name in settings.nodes]
        for lock in ("x", "y"):
            node.proxy.ask(Acquire(lock=lock, wait_ms=SESSION_S * 1000 // 3), timeout=PATIENCE_S)


def test_nodes_that_were_stopped_are_not_kept_for_the_end_of_the_program(tmp_path: Path) -> None:
    with running_nodes(tmp_path, nodes=1) as nodes:
        kept = weakref.ref(nodes["n1"])
    nodes.clear()
    gc.collect()
    assert kept() is None


@forks
def test_an_embedded_node_refuses_its_forks(tmp_path: Path) -> None:
    with running_nodes(tmp_path, nodes=1) as nodes:
        node = nodes["n1"]
        first = node.proxy.ask(Acquire(lock="y"), timeout=PATIENCE_S)
        clock = node.ref("clock")
        uses: list[Callable[[], object]] = [
            lambda: node.proxy.ask(Acquire(lock="z")),
            lambda: node.proxy.ask(Acquire(lock="z"), block=False).get(),
            lambda: node.proxy.tell(Acquire(lock="z")),
            lambda: clock.ask(ReadClock()),
            lambda: node.ref("clock"),
            lambda: node.add_role(Counter),
            node.wait,
        ]

        def all_refused() -> bool:
            node.stop()  # It is the parent's.
            return all("after the fork" in refusal(ClosedError, use) for use in uses)

        in_child(all_refused)
        node.proxy.ask(Release(lock="y", fence=first.fence), timeout=PATIENCE_S)


@pytest.mark.parametrize(
    "command", [("dev",), ("serve", "--id", "n1"), ("simulate", "--seeds", "0..1")]
)
def test_no_node_starts_without_assertions_and_one_line_gives_the_reason(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    config(tmp_path)
    done = run_to_end(
        [sys.executable, "-m", "fencelock", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONOPTIMIZE": "1"},
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "python -O turns off the checks that a node relies on" in line
    assert "start without -O, and without PYTHONOPTIMIZE" in line
