"""The TOML file of a cluster as it is written: its keys and their allowed values."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator

from fencelock.actors.bakery.config import GRACE_MS, HOLD_MS, OBTENTION_MS, PRIORITY, TERM_MS_MIN
from fencelock.actors.bakery.ticket import TERM_MS_MAX
from fencelock.actors.paxos.snapshots import JOURNAL_BYTES
from fencelock.cluster.guarantee import PROMISES

NODES_MAX = 64
"""The most nodes of a cluster. Every node talks to every other: 64 means 63 links a node."""
CLUSTER_ID = re.compile(r"[a-z0-9-]{1,64}")
NODE_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
ADDRESS = re.compile(
    r"tcp://(?P<host>[A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):(?P<port>[1-9][0-9]{0,4})"
)
ANYWHERE = {"0.0.0.0", "[::]"}
"""Hosts that a node can listen on, but not be reached at."""
FOLDER = re.compile(r"[^\0]+")
DURABILITIES = ("fsync", "memory")
LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR")
PORT_MAX = 65535
JOURNAL_BYTES_MIN = 64 << 10
"""`paxos`: below this (bytes) a node would spend more on snapshots than on serving."""
JOURNAL_BYTES_MAX = 1 << 30
"""`paxos`: above this (bytes) a node would read its journal for minutes at a start."""

PRIORITY_OFF = "off"
PRIORITIES = range(1, 15)
"""`bakery`: the smaller the number, the likelier the node leads."""
MS_PER_S = 1_000
TERM_S_MIN, TERM_S_MAX = 0.1, TERM_MS_MAX / MS_PER_S
"""`bakery`: the bounds of terms in the config (s); the minimum is a few network delays."""

UNLIMITED = "unlimited"
"""`bakery`: an acquire timeout as long as a wait can be."""


def _matching(pattern: re.Pattern[str]) -> AfterValidator:
    def check(value: str) -> str:
        if pattern.fullmatch(value) is None:
            raise ValueError(value)
        return value

    return AfterValidator(check)


def _one_of(values: tuple[str, ...]) -> AfterValidator:
    return _matching(re.compile("|".join(values)))


def _address(value: str) -> str:
    match = ADDRESS.fullmatch(value)
    if match is None or match["host"] in ANYWHERE or int(match["port"]) > PORT_MAX:
        raise ValueError(value)
    return value


def _priority(value: object) -> int | str:
    if value == PRIORITY_OFF:
        return PRIORITY_OFF
    if isinstance(value, int) and not isinstance(value, bool) and value in PRIORITIES:
        return value
    raise ValueError(value)


def _obtention(value: object) -> float | str:
    if value == UNLIMITED:
        return UNLIMITED
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(value)  # noqa: TRY004  # Reported as any value that is not allowed.
    if not TERM_S_MIN <= value <= TERM_S_MAX:
        raise ValueError(value)
    return float(value)


class Strict(BaseModel):
    """A table in which every key must be known, and of the right type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Term = Annotated[float, Field(ge=TERM_S_MIN, le=TERM_S_MAX)]


class _Node(Strict):
    address: Annotated[str, AfterValidator(_address)]
    priority: Annotated[int | str, PlainValidator(_priority)] = PRIORITY


class _Bakery(Strict):
    duration: Term = HOLD_MS / MS_PER_S
    grace: Term = GRACE_MS / MS_PER_S
    least: Term = TERM_MS_MIN / MS_PER_S
    obtention: Annotated[float | str, PlainValidator(_obtention)] = OBTENTION_MS / MS_PER_S


class _Central(Strict):
    server: str | None = None
    journal: bool = False


class _Paxos(Strict):
    durability: Annotated[str, _one_of(DURABILITIES)] = "fsync"
    journal_bytes: Annotated[int, Field(ge=JOURNAL_BYTES_MIN, le=JOURNAL_BYTES_MAX)] = JOURNAL_BYTES


class _Log(Strict):
    level: Annotated[str, _one_of(LOG_LEVELS)] = "INFO"


class File(Strict):
    """The whole file."""

    cluster: Annotated[str, _matching(CLUSTER_ID)]
    protocol: Annotated[str, _one_of(tuple(PROMISES))]
    data: Annotated[str, _matching(FOLDER)] | None = None
    nodes: Annotated[
        dict[Annotated[str, _matching(NODE_ID)], _Node], Field(min_length=1, max_length=NODES_MAX)
    ]
    bakery: _Bakery = _Bakery()
    central: _Central = _Central()
    paxos: _Paxos = _Paxos()
    log: _Log = _Log()


_TERM = f"{TERM_S_MIN:g} to {TERM_S_MAX:g} s"

ALLOWED = {
    "": "one of " + ", ".join(File.model_fields),
    "cluster": 'a name of 1 to 64 of a-z, 0-9 and - like "orders"',
    "protocol": "one of " + ", ".join(f'"{name}"' for name in PROMISES),
    "data": 'a folder like "./data"',
    "nodes": f"1 to {NODES_MAX} tables like [nodes.n1]",
    "nodes.*": (
        "a table with an address, under an id of 1 to 32 of a-z, 0-9 and - "
        'that begins with a letter or digit, like "n1"'
    ),
    "nodes.*.address": 'an address the other nodes can reach like "tcp://10.0.0.1:4040"',
    "nodes.*.priority": '1 to 14, the smaller the likelier to lead, or "off"',
    "bakery": "a table with " + " and ".join(_Bakery.model_fields),
    "bakery.duration": _TERM,
    "bakery.grace": _TERM,
    "bakery.least": _TERM,
    "bakery.obtention": f'{_TERM}, or "{UNLIMITED}"',
    "central": "a table with " + " and ".join(_Central.model_fields),
    "central.server": 'the id of a node like "n1"',
    "central.journal": "true or false",
    "paxos": "a table with " + " and ".join(_Paxos.model_fields),
    "paxos.durability": "one of " + ", ".join(f'"{kind}"' for kind in DURABILITIES),
    "paxos.journal_bytes": f"{JOURNAL_BYTES_MIN} to {JOURNAL_BYTES_MAX} bytes",
    "log": "a table with " + " and ".join(_Log.model_fields),
    "log.level": "one of " + ", ".join(f'"{level}"' for level in LOG_LEVELS),
}
"""The allowed values of each key, as the subject of ``... is expected``."""

TABLES: dict[str, type[Strict]] = {
    "": File, "nodes.*": _Node, "bakery": _Bakery, "central": _Central, "paxos": _Paxos, "log": _Log
}  # fmt: skip
