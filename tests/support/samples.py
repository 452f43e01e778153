"""Messages and values that tests copy with other fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from msgspec import Struct
from msgspec.structs import replace

from fencelock.actors.api.cluster_message import NodeStatus
from fencelock.actors.effect import Effects
from fencelock.actors.message import Address
from fencelock.actors.role import Role
from fencelock.actors.role_message import Level, RoleNotice
from fencelock.cluster.client.hold import BaseHold
from fencelock.cluster.node.storage.backup import BackupHeader
from support.role_harness import at, sent

READY = NodeStatus(
    node="n1",
    protocol="paxos",
    nodes=("n1",),
    ready=True,
    detail="ready",
    uptime_ms=1,
    counters=(),
    locks=(),
)
"""A node that serves alone and knows of no lock; see `dataclasses.replace`."""


HEADER = BackupHeader(
    cluster="orders",
    protocol="paxos",
    node="n2",
    date="2025-11-22T13:47:33+00:00",
    slot=54,
    time_ms=1859,
    fence=3,
    parts=1,
    release="0.1.0",
)


class Row(NamedTuple):
    """A message that an honest member may send, and values of its fields that none sends."""

    role: Callable[[], Role[Any]]
    sender: Address
    honest: Any
    impossible: Mapping[str, Sequence[Any]]


def variants(value: Any, **fields: Sequence[Any]) -> list[Any]:
    """Return copies of a message or a named tuple, each with one other value of a field."""
    others = [{name: one} for name, many in fields.items() for one in many]
    if isinstance(value, Struct):
        return [replace(value, **other) for other in others]
    return [value._replace(**other) for other in others]


def cases(rows: Iterable[Row]) -> list[Any]:
    """Return a parameter set for each impossible value: the row, the field, and the value."""
    return [
        pytest.param(row, field, value, id=f"{type(row.honest).__name__}.{field}-{number}")
        for row in rows
        for field, values in row.impossible.items()
        for number, value in enumerate(values)
    ]


def errors(effects: Effects) -> list[str]:
    """Return the texts that are logged at ERROR."""
    return [one.text for one in sent(effects, RoleNotice) if one.level is Level.ERROR]


def demand_honest(row: Row) -> None:
    """Fail if the honest message is refused."""
    assert errors(row.role().handle(row.sender, row.honest, at(1))) == []


def demand_bounds(
    rows: Iterable[Row], harmless: Mapping[Any, Mapping[str, str]], kinds: Iterable[Any]
) -> None:
    """Fail unless each field of the messages ``kinds`` has a bound, or a reason to need none."""
    bounded: dict[Any, set[str]] = {}
    for row in rows:
        bounded.setdefault(type(row.honest), set()).update(row.impossible)
    for kind in kinds:
        known = bounded.get(kind, set()) | harmless.get(kind, {}).keys()
        assert known == set(kind.__struct_fields__), kind


def fence_of(hold: BaseHold | None) -> int:
    """Return the fence of ``hold``, which must not be None."""
    assert hold is not None
    return hold.fence


def flipped(content: bytes, at: int, bits: int = 0xFF) -> bytes:
    """Return ``content`` with ``bits`` of the byte ``at`` changed."""
    spoilt = bytearray(content)
    spoilt[at] ^= bits
    return bytes(spoilt)
