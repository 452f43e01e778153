"""The configuration of a cluster: one TOML file, the same for every node."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fencelock.actors.api.name import WAIT_MS_MAX
from fencelock.actors.bakery.config import LEADERS_MAX, OFF, PRIORITY
from fencelock.actors.error import ConfigError
from fencelock.cluster.config_file import ALLOWED, MS_PER_S, PRIORITY_OFF, TABLES, File
from fencelock.cluster.guarantee import PROMISES
from fencelock.cluster.topology import ProtocolSettings

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
    """`bakery`: the priorities of nodes that set their own: 1 to 14, or 15 for off."""
    data: Path | None = None
    """The folder for what must survive a restart; see `folder_of`."""
    log_level: str = "INFO"

    def folder_of(self, node: str) -> Path | None:
        """Return the folder of ``node``: nodes of one machine share ``data``, but not a journal."""
        return None if self.data is None else self.data / node

    def settings_of(self, node: str) -> ProtocolSettings:
        """Return the settings of ``node``: the common ones, with its own priority."""
        if node not in self.priorities:
            return self.settings
        return replace(self.settings, bakery_priority=self.priorities[node])


def load(path: Path) -> Config:
    """Read the configuration at ``path``.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or something in it is not usable;
            the text has a line for each problem.

    """
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
    try:
        return parse(text, path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path} is not usable:\n{error}") from error


def parse(text: str, folder: Path) -> Config:
    """Read a configuration from ``text``, whose relative paths begin at ``folder``.

    Raises:
        ConfigError: as for `load`.

    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}") from error
    try:
        file = File.model_validate(document)
    except ValidationError as error:
        problems = [_problem(dict(detail)) for detail in error.errors()]
        raise ConfigError("\n".join(problems)) from error
    if problems := _contradictions(file):
        raise ConfigError("\n".join(problems))
    return Config(
        cluster=file.cluster,
        protocol=file.protocol,
        nodes={node: file.nodes[node].address for node in sorted(file.nodes)},
        settings=ProtocolSettings(
            bakery_hold_ms=_ms(file.bakery.duration),
            bakery_grace_ms=_ms(file.bakery.grace),
            bakery_least_ms=_ms(file.bakery.least),
            bakery_wait_ms=_obtention_ms(file),
            central_server=file.central.server or "",
            central_journal=file.central.journal,
            paxos_journal_bytes=file.paxos.journal_bytes,
            paxos_memory=file.paxos.durability == "memory",
        ),
        priorities={
            node: OFF if isinstance(table.priority, str) else table.priority
            for node, table in sorted(file.nodes.items())
            if table.priority != PRIORITY
        },
        data=None if file.data is None else folder / file.data,
        log_level=file.log.level,
    )


def starting_config(
    addresses: Mapping[str, str], *, cluster: str = "fencelock", protocol: str = "paxos"
) -> str:
    """Return a configuration with comments, to begin from.

    Args:
        addresses: node id to address, see `loopback`.
        cluster: the cluster's id.
        protocol: one of `guarantee.PROMISES`.

    Raises:
        ConfigError: the arguments would give an unusable configuration.

    """
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


def loopback(nodes: int, port: int = DEFAULT_PORT) -> dict[str, str]:
    """Return addresses for ``nodes`` nodes on this machine, at the ports after ``port``."""
    return {f"n{n}": f"tcp://127.0.0.1:{port + n}" for n in range(1, nodes + 1)}


_STARTING = """\
# A fencelock cluster. Every node is given this same file:
#   fencelock serve --config cluster.toml --id n1

cluster = {cluster}  # a name of a-z, 0-9 and -; frames of another cluster are refused
protocol = {protocol}  # {protocols}
data = "./data"  # where nodes keep what must survive a restart; relative to this file

# Where each node is reached, by the other nodes and by clients.
{nodes}
[bakery]  # read by protocol = "bakery" only; [nodes.*] may have a priority = 1 to 14 or "off"
duration = 5.0  # default duration of a hold (s); then the holder must release or renew
grace = 5.0  # so much later it is taken away
least = 3.0  # shorter durations and graces are refused, and so are shorter defaults
obtention = 5.0  # how long who says no timeout waits for a lock (s), or "unlimited": a week

[central]  # read by protocol = "central" only
# server = {first}  # the node that owns every lock; the first by name if left out
journal = false  # true: a restarted server goes on where it was

[paxos]  # read by protocol = "paxos" only
durability = "fsync"  # memory: no disk; a node that restarts votes only after all restarted
# journal_bytes = 8388608  # how much a member writes before it trims its journal

[log]
level = "INFO"
"""


def _problem(detail: dict[str, Any]) -> str:
    """Return the line that describes a problem found by pydantic."""
    path = [str(step) for step in detail["loc"] if step != "[key]"]
    key = ".".join(_key(step) for step in path)
    pattern = ".".join("*" if path[0] == "nodes" and i == 1 else s for i, s in enumerate(path))
    if detail["type"] == "extra_forbidden":
        known = list(TABLES[pattern.rpartition(".")[0]].model_fields)
        near = difflib.get_close_matches(path[-1], known, n=1)
        advice = f'did you mean "{near[0]}"?' if near else f"known here: {', '.join(known)}"
        return f"{key}: not a known key; {advice}"
    allowed = ALLOWED[pattern]
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
    server = file.central.server
    if server is not None and server not in file.nodes:
        known = ", ".join(_toml(node) for node in sorted(file.nodes))
        problems.append(_unusable("central.server", server, f"one of {known}"))
    if file.central.journal and file.data is None:
        problems.append(f"data: missing; central.journal = true needs {ALLOWED['data']}")
    return problems


def _problems_of_bakery(file: File) -> list[str]:
    problems: list[str] = []
    least = file.bakery.least
    terms = ("duration", file.bakery.duration), ("grace", file.bakery.grace)
    for key, value in (*terms, ("obtention", file.bakery.obtention)):
        if not isinstance(value, str) and value < least:
            allowed = f"at least bakery.least, {least:g} s,"
            problems.append(_unusable(f"bakery.{key}", value, allowed))
    off = [node for node, table in sorted(file.nodes.items()) if table.priority == PRIORITY_OFF]
    seats, left = min(LEADERS_MAX, len(file.nodes)), len(file.nodes) - len(off)
    if file.protocol == "bakery" and left < seats:
        problems.append(
            f'nodes: priority "off" of {", ".join(off)} leaves {left} for the {seats} seats of '
            "the leaders"
        )
    return problems


def _obtention_ms(file: File) -> int:
    obtention = file.bakery.obtention
    return WAIT_MS_MAX if isinstance(obtention, str) else _ms(obtention)


def _ms(seconds: float) -> int:
    return round(seconds * MS_PER_S)


def _key(step: str) -> str:
    return step if re.fullmatch(r"[A-Za-z0-9_-]+", step) else _toml(step)


def _toml(value: object) -> str:
    """Return ``value`` much as it stands in the file; for text, exactly a TOML string."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")
