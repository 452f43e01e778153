"""Queries of a running cluster for the commands: finding it, and formatting its answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast

import typer

from fencelock.actors.api.backup_message import BackupPart
from fencelock.actors.api.membership_message import ChangeMembers, MembersChanged, MembersRead
from fencelock.actors.api.message import Contender, LockStatus, NodeStatus
from fencelock.actors.api.name import KIND_END, titled
from fencelock.actors.api.session_message import ListedLock
from fencelock.actors.error import UnavailableError, WrongClusterError

if TYPE_CHECKING:
    from fencelock.cluster.settings import Target

EXIT_NO_ANSWER = 1

ConnectOption = Annotated[
    str | None,
    typer.Option(
        "--connect",
        envvar="FENCELOCK_CONNECT",
        help="Addresses of nodes, separated by commas. Default: those in ./cluster.toml, "
        "else tcp://127.0.0.1:4040.",
        metavar="ADDRESSES",
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        envvar="FENCELOCK_CLUSTER",
        help="The cluster's name. Default: the one in ./cluster.toml, else fencelock.",
    ),
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", help="How long to wait for the first reply (s).")
]


class Operator(Protocol):
    """The operations of a client that the commands use."""

    def describe(self, *, roles: bool = False) -> tuple[NodeStatus, ...]:
        """Return the status of each node, with its roles if ``roles`` is set."""
        ...

    def status(self, name: str) -> LockStatus:
        """Return who holds a lock, and who waits."""
        ...

    def locks(self, prefix: str = "") -> Iterable[ListedLock]:
        """Return the held locks whose names begin with ``prefix``, by name."""
        ...

    def backup_part(self, node: str = "", slot: int = 0, chunk: int = 0) -> BackupPart:
        """Return a part of a backup."""
        ...

    def members(self) -> MembersRead:
        """Return the nodes of the cluster."""
        ...

    def change_members(self, change: ChangeMembers) -> MembersChanged:
        """Begin a change of the members, or return how far it is."""
        ...

    def evict(self, name: str, fence: int, operator: str | None = None) -> Contender:
        """Take a lock from its holder under ``fence``, and return that holder."""
        ...


def target(connect: str | None, cluster: str | None) -> Target:
    """Return the target of ``--connect`` and ``--cluster``; see `Target.find`.

    Raises:
        ConfigError: an address, or the file here, is not usable.

    """
    from fencelock.cluster.settings import Target  # noqa: PLC0415 (sockets: not for --help)

    found = Target.find(connect, cluster)
    assert found.endpoints
    return found


@contextmanager
def asking(where: Target, timeout: float) -> Generator[Operator]:
    """Connect; if no node answers, print a line and exit with `EXIT_NO_ANSWER`.

    Raises:
        WrongClusterError: the nodes that answer are of another cluster or version.
        RefusedError: a request in the ``with`` is refused.

    """
    from fencelock.cluster import client  # noqa: PLC0415 (sockets: not for --help)

    try:
        with client.connect_to(where, timeout=timeout) as session:
            yield session
    except WrongClusterError:
        raise
    except UnavailableError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_NO_ANSWER) from error


_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))
_ENVELOPE = frozenset({"session", "request"})
"""Fields that only match a reply with its request; of no use to a reader."""


def as_plain(value: Any) -> Any:
    """Return a message, with all that is in it, as JSON values: fields become keys."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: as_plain(getattr(value, name)) for name in names if name not in _ENVELOPE}
    if hasattr(value, "_asdict"):
        return {name: as_plain(part) for name, part in value._asdict().items()}
    if isinstance(value, tuple):
        return [as_plain(part) for part in cast("Sequence[object]", value)]
    return value


def duration(ms: int) -> str:
    """Return ``ms`` milliseconds in the two largest units that fit, like ``2h 5m``."""
    if ms < 1_000:  # noqa: PLR2004 (a second)
        return f"{ms}ms"
    parts: list[str] = []
    for unit, size in _UNITS:
        count, ms = divmod(ms, size)
        if count or parts:
            parts.append(f"{count}{unit}")
        if len(parts) == 2:  # noqa: PLR2004 (as the docstring says)
            break
    return " ".join(part for part in parts if part[0] != "0")


def object_shown(lock: str) -> str:
    """Return the name of a lock, or the kind and the name of another object."""
    return titled(lock) if KIND_END in lock else lock


def address(contender: Contender) -> str:
    """Return the ids by which the cluster knows an owner: node, session and owner."""
    parts = (contender.node, contender.session, contender.owner)
    return "/".join(part for part in parts if part)


def person(contender: Contender) -> str:
    """Return an owner's label, or its ids if it has none."""
    return contender.label or address(contender)


def in_full(contender: Contender) -> str:
    """Return an owner's label, if it has one, and its ids."""
    if not contender.label:
        return address(contender)
    return f"{contender.label} ({address(contender)})"
