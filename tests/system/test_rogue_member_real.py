"""A real node that speaks as a rogue member: it is named, and the cluster goes on without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.log_lines import Line, Lines, logged_lines
from support.real_nodes import LONG_S, loopback_addresses, running
from support.rogue_roles import ROGUE, with_rogue

import fencelock
from fencelock.cluster.node import topology
from fencelock.cluster.node.config import parse, starting_config
from fencelock.cluster.node.node import Node

NAMED = {
    "paxos": (f"{ROGUE} sent that slots are decided", f"{ROGUE} sent the digest of its state"),
    "bakery": (f"{ROGUE} sent the members {ROGUE} after",),
}


@pytest.fixture
def lines() -> Iterator[Lines]:
    yield from logged_lines()


def is_error(line: Line, text: str) -> bool:
    level, node, what = line
    return level == "ERROR" and node != ROGUE and what.startswith(text)


def fence_of(nodes: dict[str, Node]) -> int:
    """Acquire a lock through a node that is honest, and release it."""
    addresses = [node.address for name, node in nodes.items() if name != ROGUE]
    with (
        fencelock.connect(addresses, connect_timeout=LONG_S) as client,
        client.lock("a", timeout=LONG_S) as hold,
    ):
        assert hold.fence is not None
        return hold.fence


@pytest.mark.parametrize("protocol", ["paxos", "bakery"])
def test_a_rogue_member_is_named_and_stops_nobody(
    protocol: str, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse(starting_config(loopback_addresses(), protocol=protocol), tmp_path)
    with monkeypatch.context() as patch:
        patch.setitem(
            topology.PROTOCOLS, protocol, with_rogue(topology.PROTOCOLS[protocol], protocol)
        )
        with running(config) as nodes:
            for text in NAMED[protocol]:
                lines.until(lambda line, text=text: is_error(line, text))  # type: ignore[misc]
            fences = [fence_of(nodes) for _ in range(3)]

    with running(config) as nodes:  # All are honest now, and have read their journals.
        assert fence_of(nodes) > max(fences)
