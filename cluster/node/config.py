"""The configuration of a cluster: one TOML file, the same for every node, and the environment.

``FENCELOCK_PAXOS__HEARTBEAT_MS=100`` overrides ``heartbeat_ms`` of the table ``[paxos]``: the key
in upper case, with two underscores for each dot. In the id of a node, an underscore stands for
``-``: ``FENCELOCK_NODES__ORDERS_0__LISTEN`` is ``nodes.orders-0.listen``. An empty variable counts
as missing. A name with two underscores whose key does not exist is refused. Other names are left
alone: Kubernetes sets ``FENCELOCK_PORT`` and the like for a service of that name.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
)

from fencelock.actors.api.membership_message import NODE_ID, PORT_MAX, is_endpoint
from fencelock.actors.api.name import WAIT_MS_MAX
from fencelock.actors.api.role_request import LOG_LEVELS
from fencelock.actors.bakery.config import (
    BAKERY_LEASE_MS,
    GRACE_MS,
    HOLD_MS,
    LEADERS_MAX,
    OBTENTION_MS,
    OFF,
    PRIORITY,
    TERM_MS_MIN,
    BakeryTiming,
    Terms,
)
from fencelock.actors.bakery.ticket import TERM_MS_MAX
from fencelock.actors.error import ConfigError
from fencelock.actors.membership_target import NO_TARGET, MemberTarget
from fencelock.actors.message import MS_PER_S
from fencelock.actors.paxos.snapshots import JOURNAL_BYTES
from fencelock.actors.quota import DEFAULT_QUOTAS, Quotas
from fencelock.actors.timing import ROUND_TRIP_MS_MAX, TIMING, TIMING_MS_MAX, Timing, derived
from fencelock.cluster.guarantee import PROMISES
from fencelock.cluster.log import LogFile
from fencelock.cluster.node.topology import ProtocolSettings

NODES_MAX = 64
"""The most nodes of a cluster. Every node talks to every other: 64 means 63 links a node."""
CLUSTER_ID = re.compile(r"[a-z0-9-]{1,64}")
LISTEN = re.compile(r"tcp://(\*|[0-9.]{7,15}|\[[0-9a-fA-F:.]{2,45}\]):(?P<port>[0-9]{1,5})")
"""An address to bind to: ``*``, or an IP address of the machine, and a port."""
FOLDER = re.compile(r"[^\0]+")
DURABILITIES = ("fsync", "memory")
METRICS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):(?P<port>[0-9]{1,5})")
ROLE_NAME = re.compile(r"[a-z][a-z-]{0,63}")
FILE_MB_MAX, FILES_MAX = 10_000, 1_000
"""Limits of the size (MB) and the number of a node's log files."""

JOURNAL_BYTES_MIN = 64 << 10
"""`paxos`: below this (bytes) a node would spend more on snapshots than on serving."""
JOURNAL_BYTES_MAX = 1 << 30
"""`paxos`: above this (bytes) a node would read its journal for minutes at a start."""

HEARTBEAT_MS_MIN = 10
"""`paxos`: below this (ms) a node would be busy with heartbeats."""

TARGETS = (0, 3, 5, 7)
"""`paxos`: the numbers of members that the leader keeps by itself, 0 for none. An even number
survives no more failures than the odd one below it."""
REPLACE_S_MIN, REPLACE_S_MAX = 1.0, 86_400.0
"""The bounds of the time after which a silent member is replaced (s): above a failover."""

QUOTA_MAX = 10_000_000
"""The largest quota of a client, in its own unit."""

PRIORITY_OFF = "off"
PRIORITY_MIN, PRIORITY_MAX = 1, 14
"""The smaller the number, the likelier the node leads (`bakery`), or becomes a member (`paxos`)."""
TERM_S_MIN, TERM_S_MAX = 0.1, TERM_MS_MAX / MS_PER_S
"""`bakery`: the bounds of terms in the config (s); the minimum is a few network delays."""

UNLIMITED = "unlimited"
"""`bakery`: an acquire timeout as long as a wait can be."""

ENV_PREFIX, ENV_DOT = "FENCELOCK_", "__"


def _says(allowed: str) -> Any:
    """Return the words for the allowed values of a key, as the subject of ``... is expected``."""
    return Field(description=allowed)


def _where(is_usable: Callable[[Any], object]) -> AfterValidator:
    """Refuse values of which ``is_usable`` returns nothing that is true."""

    def check(value: Any) -> Any:
        if not is_usable(value):
            raise ValueError(value)
        return value

    return AfterValidator(check)


def _matching(pattern: re.Pattern[str]) -> AfterValidator:
    return _where(pattern.fullmatch)


def _one_of(values: tuple[str, ...]) -> tuple[Any, ...]:
    named = ", ".join(f'"{value}"' for value in values)
    return _matching(re.compile("|".join(values))), _says(f"one of {named}")


Folder = Annotated[str, _matching(FOLDER)]
DATA = 'a folder like "./data"'


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _address(form: re.Pattern[str], port_min: int) -> AfterValidator:
    def is_usable(value: str) -> bool:
        match = form.fullmatch(value)
        return match is not None and port_min <= int(match["port"]) <= PORT_MAX

    return _where(is_usable)


def _word_or_number(word: str, kind: type[float], low: float, high: float) -> PlainValidator:
    """Allow ``word``, or a number from ``low`` to ``high``; an int counts as a float."""

    def check(value: Any) -> float | str:
        if value == word:
            return word
        is_number = isinstance(value, int | kind) and not isinstance(value, bool)
        if not is_number or not low <= value <= high:
            raise ValueError(value)
        return kind(value)

    return PlainValidator(check)


def _between(low: float, high: float, unit: str = "") -> Any:
    ends = (f"{end:g}" if isinstance(end, float) else str(end) for end in (low, high))
    return Field(ge=low, le=high, description=f"{' to '.join(ends)} {unit}".rstrip())


class Strict(BaseModel):
    """A table in which every key must be known, and of the right type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Metrics = Annotated[
    Annotated[str, _address(METRICS, 0)] | None,
    _says(
        'an address of this machine for scrapes, like "127.0.0.1:9404", with a port up to 65535,'
    ),
]
Time = Annotated[
    Annotated[int, Field(ge=1, le=TIMING_MS_MAX)] | None, _says(f"1 to {TIMING_MS_MAX} ms")
]
Term = Annotated[float, _between(TERM_S_MIN, TERM_S_MAX, "s")]
RoundTrip = Annotated[int, _between(1, ROUND_TRIP_MS_MAX, "ms")]
Quota = Annotated[int, _between(1, QUOTA_MAX)]
Silence = Annotated[float, _between(REPLACE_S_MIN, REPLACE_S_MAX, "s")]
Door = Annotated[
    Annotated[str, _address(LISTEN, 1)] | None,
    _says(
        'an IP address of this machine, or *, for clients of Redis, like "tcp://127.0.0.1:6379", '
        "with a port of 1 to 65535,"
    ),
]


class _Node(Strict):
    address: Annotated[
        str,
        _where(is_endpoint),
        _says(
            'an address the other nodes can reach like "tcp://10.0.0.1:4040", with a port up to '
            '65535 (set listen beside it to bind to another, like "tcp://0.0.0.0:4040")'
        ),
    ]
    listen: Annotated[
        Annotated[str, _address(LISTEN, 1)] | None,
        _says(
            'an IP address of this machine, or *, to bind to, like "tcp://0.0.0.0:4040", with a '
            "port of 1 to 65535 (the others use address),"
        ),
    ] = None
    priority: Annotated[
        int | Literal["off"],
        _word_or_number(PRIORITY_OFF, int, PRIORITY_MIN, PRIORITY_MAX),
        _says('1 to 14, the smaller the likelier to lead or to become a member, or "off"'),
    ] = PRIORITY
    metrics: Metrics = None
    redis: Door = None


NODE_EXPECTED = (
    "a table with an address, under an id of 1 to 32 of a-z, 0-9 and - that begins with a letter "
    'or digit, like "n1"'
)


class _Growing(Strict):
    target_members: Annotated[
        int,
        _where(TARGETS.__contains__),
        _says("3, 5 or 7 (an even number survives no more failures), or 0 for none,"),
    ] = 0
    replace_after_s: Silence = NO_TARGET.silent_ms / MS_PER_S
    down_after: Silence = NO_TARGET.down_ms / MS_PER_S

    def target(self) -> MemberTarget:
        return MemberTarget(self.target_members, _ms(self.replace_after_s), _ms(self.down_after))


class _Bakery(_Growing):
    round_trip_ms: RoundTrip = TIMING.round_trip_ms
    duration: Term = HOLD_MS / MS_PER_S
    grace: Term = GRACE_MS / MS_PER_S
    least: Term = TERM_MS_MIN / MS_PER_S
    max_hold: Annotated[float, _between(2 * TERM_S_MIN, 2 * TERM_S_MAX, "s")] = (
        BAKERY_LEASE_MS / MS_PER_S
    )
    obtention: Annotated[
        float | Literal["unlimited"],
        _word_or_number(UNLIMITED, float, TERM_S_MIN, TERM_S_MAX),
        _says(f'{TERM_S_MIN:g} to {TERM_S_MAX:g} s, or "{UNLIMITED}"'),
    ] = OBTENTION_MS / MS_PER_S
    copies: bool = True


class _Central(Strict):
    server: Annotated[str | None, _says('the id of a node like "n1"')] = None
    journal: bool = False


class _Paxos(_Growing):
    durability: Annotated[str, *_one_of(DURABILITIES)] = "fsync"
    journal_bytes: Annotated[int, _between(JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX, "bytes")] = (
        JOURNAL_BYTES
    )
    round_trip_ms: RoundTrip = TIMING.round_trip_ms
    heartbeat_ms: Annotated[int, _between(HEARTBEAT_MS_MIN, TIMING_MS_MAX, "ms")] = (
        TIMING.heartbeat_ms
    )
    lease_ms: Time = None
    isolated_ms: Time = None
    election_ms: Time = None
    rank_ms: Time = None

    def timing(self) -> Timing:
        return derived(
            self.heartbeat_ms,
            self.lease_ms,
            self.isolated_ms,
            self.election_ms,
            self.rank_ms,
            self.round_trip_ms,
        )


class _Redis(Strict):
    address: Door = None


class _Limits(Strict):
    connections: Quota = DEFAULT_QUOTAS.connections
    requests_per_s: Quota = DEFAULT_QUOTAS.requests_per_s
    requests: Quota = DEFAULT_QUOTAS.requests
    queries: Quota = DEFAULT_QUOTAS.queries
    sessions: Quota = DEFAULT_QUOTAS.sessions
    unread_kib: Quota = DEFAULT_QUOTAS.unread_kib
    tickets: Quota = DEFAULT_QUOTAS.tickets
    watches: Quota = DEFAULT_QUOTAS.watches


class _Log(Strict):
    level: Annotated[str, BeforeValidator(_upper), *_one_of(LOG_LEVELS)] = "INFO"
    trace: Annotated[
        list[str],
        _where(lambda names: all(map(ROLE_NAME.fullmatch, names))),
        _says('a list of names of roles like ["process", "clock"]'),
    ] = []
    folder: Annotated[Folder | None, _says('a folder like "./log"')] = None
    file_mb: Annotated[int, _between(1, FILE_MB_MAX)] = 100
    files: Annotated[int, _between(1, FILES_MAX)] = 10


class _Security(Strict):
    keys: Annotated[
        Folder | None, _says('a folder like "./keys", which "fencelock keys init" makes')
    ] = None
    insecure: bool = False


class File(Strict):
    """The whole file."""

    cluster: Annotated[
        str, _matching(CLUSTER_ID), _says('a name of 1 to 64 of a-z, 0-9 and - like "orders"')
    ]
    protocol: Annotated[str, *_one_of(tuple(PROMISES))]
    data: Annotated[Folder | None, _says(DATA)] = None
    nodes: Annotated[
        dict[Annotated[str, _matching(NODE_ID)], _Node],
        Field(min_length=1, max_length=NODES_MAX),
        _says(f"1 to {NODES_MAX} tables like [nodes.n1]"),
    ]
    bakery: _Bakery = _Bakery()
    central: _Central = _Central()
    paxos: _Paxos = _Paxos()
    redis: _Redis = _Redis()
    limits: _Limits = _Limits()
    log: _Log = _Log()
    security: _Security = _Security()
    metrics: Metrics = None


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Strict)


def _key_at(path: Sequence[str]) -> tuple[Any, str]:
    """Return the type of a key, and its allowed values as the subject of ``... is expected``."""
    kind: Any = File
    allowed = ""
    for place, step in enumerate(path):
        if path[0] == "nodes" and place == 1:
            kind, allowed = _Node, NODE_EXPECTED
        elif _is_table(kind):
            field = kind.model_fields[step]
            kind, allowed = field.annotation, field.description or ""
    if kind is bool:
        return kind, "true or false"
    return kind, allowed or "a table with " + " and ".join(kind.model_fields)


class Overrides(NamedTuple):
    """The keys that the environment sets."""

    document: Mapping[str, Any] = {}
    """Their values, nested like the file."""
    names: Mapping[str, str] = {}
    """Key to variable: ``paxos.heartbeat_ms`` to ``FENCELOCK_PAXOS__HEARTBEAT_MS``."""

    def name_of(self, key: str) -> str | None:
        """Return the variable that set ``key``, or something in it; None if the file did."""
        for known, name in self.names.items():
            if known == key or known.startswith(f"{key}."):
                return name
        return None


NO_OVERRIDES = Overrides()


def read_overrides() -> Overrides:
    fields = File.model_fields
    tables = {key for key in fields if key == "nodes" or _is_table(fields[key].annotation)}
    names: dict[str, str] = {}
    for name, value in sorted(os.environ.items()):
        path = name.lower().removeprefix(ENV_PREFIX.lower()).split(ENV_DOT)
        known = path[0] in fields or path[1:]
        if value and name.upper().startswith(ENV_PREFIX) and known:
            if path[0] == "nodes" and path[1:]:
                path[1] = path[1].replace("_", "-")
            names[".".join(path)] = name
    if not names:
        return NO_OVERRIDES
    for key, name in names.items():
        if key in tables:
            raise ConfigError(f"{name}: {key} is a table: set its keys, like {name}__KEY")
    # Imported late, as it takes longer than the rest of the client.
    from pydantic_settings import EnvSettingsSource  # noqa: PLC0415

    source = EnvSettingsSource(
        cast(Any, File),
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DOT,
        env_ignore_empty=True,
    )
    try:
        document = source()
    except ValueError as error:
        raise ConfigError(
            f"one of {', '.join(names.values())} is no list as in JSON, like "
            """FENCELOCK_LOG__TRACE='["process", "clock"]'"""
        ) from error
    if "nodes" in document:
        nodes = document["nodes"].items()
        document["nodes"] = {node.replace("_", "-"): table for node, table in nodes}
    for key, name in names.items():
        document.setdefault(key.partition(".")[0], os.environ[name])  # An unknown table: refused.
    return Overrides(document, names)


def merged(document: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``document`` with the values of ``over`` in place of its own."""
    result = dict(document)
    for key, value in over.items():
        own: Any = result.get(key)
        are_tables = all(isinstance(one, dict) for one in (own, value))
        result[key] = merged(own, value) if are_tables else value
    return result


DEFAULT_PORT = 4040
"""The nodes of one machine get the ports after this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A configuration that was checked and is usable."""

    cluster: str
    """The cluster's id. Frames of a cluster with another id are refused."""
    protocol: str
    nodes: dict[str, str]
    """Node id to address, sorted by id."""
    settings: ProtocolSettings = field(default_factory=ProtocolSettings)
    priorities: dict[str, int] = field(default_factory=dict[str, int])
    """The priorities of nodes that set their own: 1 to 14, or 15 for off."""
    listens: dict[str, str] = field(default_factory=dict[str, str])
    """The endpoints of nodes whose address is not one of their own machine; see `listen_of`."""
    data: Path | None = None
    """The folder for data that must survive a restart; see `folder_of`."""
    log_level: str = "INFO"
    traced_roles: tuple[str, ...] = ()
    """The roles whose messages are logged at level TRACE; empty for all."""
    log_folder: Path | None = None
    """The folder for log files, besides standard error; None for none. See `log_file_of`."""
    log_file_mb: int = 100
    """Size of a log file from which on a new one is begun (MB)."""
    log_files: int = 10
    """The number of full files that are kept."""
    keys: Path | None = None
    """The folder of the cluster's keys; None where none are used."""
    insecure: bool = False
    """Whether nodes without keys may be bound to more than loopback."""
    metrics: dict[str, str] = field(default_factory=dict[str, str])
    """The metrics address of each node that serves metrics, ``host:port``."""
    redis: dict[str, str] = field(default_factory=dict[str, str])
    """The address at which each node serves clients of Redis, ``tcp://host:port``."""
    overrides: tuple[str, ...] = ()
    """The environment variables that set something."""
    shared: str = field(default="", compare=False)
    """The part that is the same on all nodes, as TOML, for a node that joins: all but nodes, paths
    and addresses. Empty if there is no file."""

    def folder_of(self, node: str) -> Path | None:
        """Return the folder of ``node``: nodes of one machine share ``data``, but not a journal."""
        return None if self.data is None else self.data / node

    def log_file_of(self, node: str) -> LogFile | None:
        if self.log_folder is None:
            return None
        return LogFile(self.log_folder / f"{node}.log", self.log_file_mb * 10**6, self.log_files)

    def listen_of(self, node: str) -> str:
        return self.listens.get(node, self.nodes[node])

    def settings_of(self, node: str) -> ProtocolSettings:
        if node not in self.priorities:
            return self.settings
        return replace(self.settings, priority=self.priorities[node])


def load(path: str | PathLike[str]) -> Config:
    """Read the configuration file ``path``. Variables of the environment override it.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or something in it is not usable;
            the text has a line for each problem.

    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} does not exist: write a starting one with "
            f'"fencelock init --nodes 3 --config {path}"'
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path} cannot be read: {reason}") from error
    overrides = read_overrides()
    try:
        return parse(text, path.parent, overrides)
    except ConfigError as error:
        names = ", ".join(sorted(overrides.names.values()))
        whole = f"{path} with {names} of the environment" if names else str(path)
        raise ConfigError(f"{whole} is not usable:\n{error}") from error


def parse(text: str, folder: Path, overrides: Overrides = NO_OVERRIDES) -> Config:
    """Read a configuration from ``text``. Its relative paths begin at ``folder``."""
    document = _loaded(text)
    try:
        file = File.model_validate(merged(document, overrides.document))
    except ValidationError as error:
        problems = [_problem(dict(detail), overrides) for detail in error.errors()]
        raise ConfigError("\n".join(problems)) from error
    if problems := _contradictions(file):
        raise ConfigError("\n".join(problems))
    obtention = file.bakery.obtention
    return Config(
        cluster=file.cluster,
        protocol=file.protocol,
        nodes={node: file.nodes[node].address for node in sorted(file.nodes)},
        settings=ProtocolSettings(
            bakery_terms=Terms(
                hold_ms=_ms(file.bakery.duration),
                grace_ms=_ms(file.bakery.grace),
                least_ms=_ms(file.bakery.least),
                wait_ms=WAIT_MS_MAX if isinstance(obtention, str) else _ms(obtention),
                max_ms=_ms(file.bakery.max_hold),
            ),
            bakery_timing=BakeryTiming(file.bakery.round_trip_ms),
            bakery_copies=file.bakery.copies,
            central_server=file.central.server or "",
            central_journal=file.central.journal,
            paxos_journal_bytes=file.paxos.journal_bytes,
            paxos_memory=file.paxos.durability == "memory",
            paxos_timing=file.paxos.timing(),
            bakery_target=file.bakery.target(),
            paxos_target=file.paxos.target(),
            quotas=Quotas(**file.limits.model_dump()),
        ),
        priorities={
            node: OFF if isinstance(table.priority, str) else table.priority
            for node, table in sorted(file.nodes.items())
            if table.priority != PRIORITY
        },
        listens={node: table.listen for node, table in file.nodes.items() if table.listen},
        data=None if file.data is None else folder / file.data,
        log_level=file.log.level,
        traced_roles=tuple(file.log.trace),
        log_folder=None if file.log.folder is None else folder / file.log.folder,
        log_file_mb=file.log.file_mb,
        log_files=file.log.files,
        keys=None if file.security.keys is None else folder / file.security.keys,
        insecure=file.security.insecure,
        metrics={
            node: at
            for node, table in sorted(file.nodes.items())
            if (at := table.metrics or file.metrics)
        },
        redis={
            node: at
            for node, table in sorted(file.nodes.items())
            if (at := table.redis or file.redis.address)
        },
        overrides=tuple(sorted(overrides.names.values())),
        shared=toml_of(_shared(file)),
    )


_SHARED = frozenset({"cluster", "protocol", "limits", "paxos", "bakery"})
_INSECURE = {"insecure": True}


def _shared(file: File) -> dict[str, Any]:
    tables = {"cluster", "protocol", "limits", *({file.protocol} & _SHARED)}
    shared = file.model_dump(include=tables, exclude_none=True)
    return shared | ({"security": _INSECURE} if file.security.insecure else {})


def shared_from(text: str) -> dict[str, Any]:
    """Return the settings in ``text``, which another node shares (`Config.shared`).

    Raises:
        ConfigError: there are others among them. No other node chooses where this one writes.

    """
    document = _loaded(text)
    others = sorted(document.keys() - _SHARED - {"security"})
    if document.get("security", _INSECURE) != _INSECURE:
        others.append("security")
    if others:
        raise ConfigError(f"{', '.join(others)[:200]}: no setting that nodes share")
    return document


def _loaded(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"not TOML: {error}") from error


def toml_of(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """Return ``table`` as TOML: single values, then the tables in it."""
    inner: dict[str, Any] = {key: one for key, one in table.items() if isinstance(one, Mapping)}
    lines = [f"\n[{'.'.join(map(_key, path))}]"] if path else []
    lines += [f"{_key(key)} = {_toml(table[key])}" for key in table if key not in inner]
    return "\n".join([*lines, *(toml_of(inner[key], (*path, key)) for key in inner), ""])


def starting_config(
    addresses: Mapping[str, str], *, cluster: str = "fencelock", protocol: str = "paxos"
) -> str:
    tables = "\n".join(
        f"[nodes.{_key(node)}]\naddress = {_toml(address)}\n" for node, address in addresses.items()
    )
    text = _STARTING.format(
        cluster=_toml(cluster),
        protocol=_toml(protocol),
        protocols=" | ".join(PROMISES),
        nodes=tables,
        first=_toml(min(addresses, default="n1")),
    )
    parse(text, Path())  # Refuse now what loading would refuse.
    return text


def is_loopback(at: str) -> bool:
    host = at.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def loopback(nodes: int, port: int = DEFAULT_PORT) -> dict[str, str]:
    """Return addresses for ``nodes`` nodes on this machine, at the ports after ``port``."""
    return {f"n{n}": f"tcp://127.0.0.1:{port + n}" for n in range(1, nodes + 1)}


_STARTING = """\
# A fencelock cluster. Every node is given this same file:
#   fencelock serve --config cluster.toml --id n1
# A variable of the environment overrides a key: FENCELOCK_LOG__LEVEL=DEBUG sets level of [log].

cluster = {cluster}  # a name of a-z, 0-9 and -; frames of another cluster are refused
protocol = {protocol}  # {protocols}
data = "./data"  # where nodes keep what must survive a restart; relative to this file
# metrics = "127.0.0.1:9404"  # for Prometheus; nodes on one machine have one each, under [nodes.*]

# Where each node is reached, by the other nodes and by clients. A node in a container, or behind
# NAT, also has listen = "tcp://0.0.0.0:4040", where it is bound.
{nodes}
[bakery]  # read by protocol = "bakery" only; [nodes.*] may have a priority = 1 to 14 or "off"
duration = 5.0  # default duration of a hold (s); then the holder must release or renew
grace = 5.0  # time after that until the lock is taken away (s)
least = 3.0  # shorter durations and graces are refused, and so are shorter defaults
max_hold = 600.0  # longer leases, duration and grace together, are refused (s)
obtention = 5.0  # acquire timeout if none is given (s), or "unlimited": a week
# copies = true  # with five members or more, no hold is forgotten while a majority of them lives
# round_trip_ms = 50  # longest round trip between two nodes, 1 to 1000; the same on all of them
# down_after = 30  # a member that is silent for so long (s) is called down
# target_members = 3  # as below, kept by the node that coordinates
# replace_after_s = 300

[central]  # read by protocol = "central" only
# server = {first}  # the node that owns every lock; the first by name if left out
journal = false  # true: a restarted server keeps its table

[paxos]  # read by protocol = "paxos" only
durability = "fsync"  # memory: no disk; a node that restarts votes only after all restarted
# journal_bytes = 8388608  # how much a member writes before it trims its journal
# round_trip_ms = 50  # longest round trip between two nodes, 1 to 1000; the same on all of them
# The times below follow from it. Set one only if you know why; the same on all members.
# heartbeat_ms = 50  # interval between two heartbeats of a leader
# lease_ms = 250  # time after a heartbeat in which no other leader is elected
# isolated_ms = 350  # a leader without a majority for so long sends clients elsewhere
# election_ms = 700  # silence of a leader before the first election
# rank_ms = 150  # delay between the followers' elections
# down_after = 30  # a member that is silent for so long (s) is called down
# target_members = 3  # 3, 5 or 7: the leader keeps so many members by itself; 0: operators do
# replace_after_s = 300  # a member that is silent for so long is replaced, if target_members is set

# [redis]  # clients of Redis may hold locks: docs/redis.md; a node may have its own: redis = ...
# address = "tcp://127.0.0.1:6379"

# [limits]  # of one client at one node; see docs/operations.md
# connections = 3000  # from one address; more are closed
# requests_per_s = 50000  # more are refused for the rest of the second
# requests = 10000  # commands in flight
# queries = 256  # reads without a reply
# sessions = 10000  # open sessions of all clients with one key
# unread_kib = 2048  # replies that it has not read; then its frames are dropped until it reads
# tickets = 25000  # holds and waits of all clients with one key (bakery), at all nodes together
# watches = 1000  # reads that wait for a change of an object

[log]
level = "INFO"
# trace = ["process", "clock"]  # level "TRACE": only the messages of these roles
# folder = "./log"  # also write to NODE.log in this folder
# file_mb = 100  # begin a new file when it has so many MB
# files = 10  # keep so many full ones

[security]  # without keys, nodes serve on loopback only
# keys = "./keys"  # of nodes, clients and operators: fencelock keys init
# insecure = true  # serve on other addresses without keys: whoever reaches them may do everything
"""


def _problem(detail: dict[str, Any], overrides: Overrides) -> str:
    path = [str(step) for step in detail["loc"] if step != "[key]"]
    key = overrides.name_of(".".join(path)) or ".".join(_key(step) for step in path)
    if detail["type"] == "extra_forbidden":
        known = list(_key_at(path[:-1])[0].model_fields)
        near = difflib.get_close_matches(path[-1], known, n=1)
        advice = f'did you mean "{near[0]}"?' if near else f"known here: {', '.join(known)}"
        return f"{key}: not a known key; {advice}"
    _, allowed = _key_at(path)
    if detail["type"] == "missing":
        return f"{key}: missing; {allowed} is expected"
    return _unusable(key, detail["input"], allowed)


def _unusable(key: str, value: object, allowed: str) -> str:
    return f"{key}: {_toml(value)} is not usable: {allowed} is expected"


def _contradictions(file: File) -> list[str]:
    """Return the problems of combinations whose values are allowed one by one."""
    problems: list[str] = []
    promise = PROMISES[file.protocol]
    if len(file.nodes) < promise.nodes_min:
        problems.append(
            f'nodes: {len(file.nodes)} is not usable: protocol "{file.protocol}" needs at least '
            f"{promise.nodes_min} ({promise.why_nodes_min})"
        )
    owners: dict[str, str] = {}
    for node, table in file.nodes.items():
        first = owners.setdefault(table.address, node)
        if first != node:
            problems.append(
                f'nodes.{node}.address: "{table.address}" is not usable: node {first} has it, '
                "and every node needs an address of its own"
            )
    problems += _problems_of_bakery(file)
    try:
        file.paxos.timing()
    except ValueError as error:
        problems.append(f"paxos: {error}")
    server = file.central.server
    if server is not None and server not in file.nodes:
        known = ", ".join(_toml(node) for node in sorted(file.nodes))
        problems.append(_unusable("central.server", server, f"one of {known}"))
    if file.protocol != "paxos" and (
        file.redis.address or any(table.redis for table in file.nodes.values())
    ):
        problems.append(f'redis: protocol "{file.protocol}" has no Redis door: "paxos" has')
    if file.security.keys is not None and file.security.insecure:
        problems.append("security.insecure: true is not usable: security.keys is set")
    if file.central.journal and file.data is None:
        problems.append(f"data: missing; central.journal = true needs {DATA}")
    return problems


def _problems_of_bakery(file: File) -> list[str]:
    problems: list[str] = []
    least = file.bakery.least
    terms = ("duration", file.bakery.duration), ("grace", file.bakery.grace)
    for key, value in (*terms, ("obtention", file.bakery.obtention)):
        if not isinstance(value, str) and value < least:
            allowed = f"at least bakery.least, {least:g} s,"
            problems.append(_unusable(f"bakery.{key}", value, allowed))
    lease = file.bakery.duration + file.bakery.grace
    if file.bakery.max_hold < lease:
        allowed = f"at least bakery.duration and bakery.grace together, {lease:g} s,"
        problems.append(_unusable("bakery.max_hold", file.bakery.max_hold, allowed))
    off = [node for node, table in sorted(file.nodes.items()) if table.priority == PRIORITY_OFF]
    seats, left = min(LEADERS_MAX, len(file.nodes)), len(file.nodes) - len(off)
    if file.protocol == "bakery" and left < seats:
        problems.append(
            f'nodes: priority "off" of {", ".join(off)} leaves {left} for the {seats} seats of '
            "the leaders"
        )
    return problems


def _ms(seconds: float) -> int:
    return round(seconds * MS_PER_S)


def _key(step: str) -> str:
    return step if re.fullmatch(r"[A-Za-z0-9_-]+", step) else _toml(step)


def _toml(value: object) -> str:
    """Return ``value`` much as the file has it; for text, exactly a TOML string."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")
