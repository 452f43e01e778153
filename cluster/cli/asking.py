"""Queries of a running cluster for the commands: finding it, and formatting its answers."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    NoReturn,
    Protocol,
    cast,
    get_type_hints,
)

import typer

from fencelock.actors.api.account import AccountUsage, Amounts, ListedMap, Purge, Quota
from fencelock.actors.api.backup_message import BackupPart
from fencelock.actors.api.election import ELECTION
from fencelock.actors.api.map import EntryList
from fencelock.actors.api.membership_message import ChangeMembers, MembersChanged, MembersRead
from fencelock.actors.api.message import Contender, LockStatus
from fencelock.actors.api.name import KIND_END, kind_of, plain_name
from fencelock.actors.api.rwlock import RWLOCK
from fencelock.actors.api.session_message import (
    ListedEviction,
    ListedLock,
    ListedObject,
    ListedSession,
    SessionClosed,
)
from fencelock.actors.error import FencelockError, UnavailableError, WrongClusterError
from fencelock.actors.session.message import Surveyed
from fencelock.cluster.cli.naming import (
    LOCK,
    MARK,
    object_kinds,
    object_named,
    object_shown,
    object_spelled,
)
from fencelock.cluster.cli.screen import Unanswered, View, present, say
from fencelock.cluster.log import printable

if TYPE_CHECKING:
    from fencelock.cluster.client.map import Map
    from fencelock.cluster.client.settings import Target

EXIT_NO_ANSWER = 1
EXIT_UNSERVED = 3
"""Nodes answer, but without a leader or a majority they serve nobody."""

SURVEY_SHARE = 0.25
"""Part of ``--timeout`` that is left to find out why a request was not answered."""


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
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar="FENCELOCK_KEY",
        help="Your key file, if the cluster uses keys (`fencelock keys add` makes one).",
        metavar="FILE",
    ),
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", help="How long to wait for the first reply (s).")
]
LookTimeoutOption = Annotated[
    float, typer.Option("--timeout", help="How long to wait for all replies (s).")
]
WatchOption = Annotated[
    bool, typer.Option("--watch", help="Show it again every second, until Ctrl-C.")
]


class Operator(Protocol):
    """The operations of a client that the commands use."""

    def survey(self, *, roles: bool = False) -> Surveyed:
        """Return the status of each node, and the addresses that did not answer."""
        ...

    def status(self, name: str) -> LockStatus:
        """Return the holder and the queue of a lock."""
        ...

    def locks(self, prefix: str = "") -> Iterable[ListedLock]:
        """Return the held locks whose names begin with ``prefix``, by name."""
        ...

    def objects(self, prefix: str = "") -> Iterable[ListedObject]:
        """Return the objects that nobody can hold whose names begin with ``prefix``, by name."""
        ...

    def sessions(self) -> tuple[ListedSession, ...]:
        """Return the open sessions of all clients."""
        ...

    def evictions(self) -> tuple[ListedEviction, ...]:
        """Return the last forced releases."""
        ...

    def close_session(self, handle: str, operator: str | None = None) -> SessionClosed:
        """Close the session with that ``handle``."""
        ...

    def backup_part(self, node: str = "", slot: int = 0, chunk: int = 0) -> BackupPart:
        """Return a part of a backup."""
        ...

    def answer_by(self, ends_at: float) -> None:
        """Let later requests fail at ``ends_at`` (s, of ``time.monotonic``)."""
        ...

    def members(self) -> MembersRead:
        """Return the nodes of the cluster."""
        ...

    def change_members(self, change: ChangeMembers) -> MembersChanged:
        """Begin a change of the members, or return how far it is."""
        ...

    def usage(self) -> tuple[AccountUsage, ...]:
        """Return what each key has and may have."""
        ...

    def set_quota(self, key: str, quota: Quota, operator: str | None = None) -> Amounts:
        """Let ``quota`` be the whole quota of a key; return what it may have."""
        ...

    def maps(self, prefix: str = "") -> tuple[ListedMap, ...]:
        """Return the maps whose names begin with ``prefix``."""
        ...

    def entry_page(self, name: str, prefix: str, after: str, most: int) -> EntryList:
        """Return one page of the entries of a map."""
        ...

    def map(self, name: str) -> Map:
        """Return a map."""
        ...

    def purge(self, purge: Purge) -> int:
        """Delete entries, latches or barriers; return their number."""
        ...

    def evict(self, name: str, fence: int, operator: str | None = None) -> Contender:
        """Take a lock from its holder under ``fence``, and return that holder."""
        ...


class TargetOptions(NamedTuple):
    """The options by which every command about a running cluster finds it."""

    connect: ConnectOption = None
    cluster: ClusterOption = None
    key: KeyOption = None

    def target(self) -> Target:
        """Return the target that they name; see `Target.find`.

        Raises:
            ConfigError: an address, or the file here, is not usable.

        """
        from fencelock.cluster.client.settings import Target  # noqa: PLC0415 (sockets: not for --help)

        found = Target.find(*self)
        assert found.endpoints
        return found


NONE_GIVEN = TargetOptions()


def asks_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` the options of `TargetOptions` in place of its parameter ``given``."""

    @functools.wraps(command)
    def called(**values: Any) -> None:
        given = TargetOptions(*(values.pop(name) for name in TargetOptions._fields))
        command(**values, given=given)

    parameters: list[inspect.Parameter] = []
    for own in inspect.signature(command, eval_str=True).parameters.values():
        hints = get_type_hints(TargetOptions, include_extras=True)
        options = [own.replace(name=name, annotation=hints[name], default=None) for name in hints]
        parameters += options if own.name == "given" else [own]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    vars(called)["__signature__"] = inspect.Signature(parameters)
    return called


@contextmanager
def asking(where: Target, timeout: float) -> Generator[Operator]:
    """Connect; if no node answers, or none can, print a line and exit with the status for that.

    Raises:
        WrongClusterError: the nodes that answer belong to another cluster or version.
        RefusedError: a request in the ``with`` is refused.

    """
    try:
        with looking(where, timeout, bounded=False) as operator:
            yield operator
    except Unanswered as problem:
        say(str(problem), err=True)
        raise typer.Exit(problem.exit_code) from problem


@contextmanager
def looking(where: Target, timeout: float, *, bounded: bool = True) -> Generator[Operator]:
    """Connect, for requests that are ``bounded``: all of them end within ``timeout`` (s).

    Raises:
        Unanswered: no node answers, or none can without a leader or a majority.
        WrongClusterError: the nodes that answer belong to another cluster or version.
        RefusedError: a request in the ``with`` is refused.

    """
    from fencelock.cluster.client import client  # noqa: PLC0415 (sockets: not for --help)

    ends = time.monotonic() + timeout
    answered = False
    try:
        with client.connect_to(where, timeout=timeout) as session:
            answered = True
            if bounded:
                session.answer_by(ends - timeout * SURVEY_SHARE)
            try:
                yield session
            except WrongClusterError:
                raise
            except UnavailableError as error:
                if bounded:
                    session.answer_by(ends)
                raise Unanswered(_why_unserved(session, error), EXIT_UNSERVED) from error
    except WrongClusterError:
        raise
    except UnavailableError as error:
        raise Unanswered(str(error), EXIT_UNSERVED if answered else EXIT_NO_ANSWER) from error


def show(
    where: Target,
    timeout: float,
    view: Callable[[Operator], View],
    *,
    watch: bool = False,
    failed: int | None = None,
) -> NoReturn:
    """Print the ``view`` of what a cluster answers, and exit with its status; see `present`."""

    def look() -> View:
        with looking(where, timeout) as operator:
            return view(operator)

    raise typer.Exit(present(look, watch=watch, failed=failed))


def _why_unserved(operator: Operator, error: UnavailableError) -> str:
    """Return the nodes' own reasons, if they have any."""
    try:
        nodes = operator.survey().statuses
    except FencelockError:
        return str(error)
    reasons = "; ".join(f"{node.node}: {node.detail}" for node in nodes if not node.ready)
    return f"No node can answer now. {reasons}" if reasons else str(error)


COMPLETE_S = 1.0
"""Time limit for the completion of a name in a shell (s)."""


def _completed(
    ctx: typer.Context, incomplete: str, names_of: Callable[[Operator], Iterable[str]]
) -> list[str]:
    """Return the names that begin with ``incomplete``; none if the cluster does not answer.

    Names that a terminal cannot show are left out: the shell would print them as they are.
    """
    try:
        given = TargetOptions(*map(ctx.params.get, TargetOptions._fields))
        with looking(given.target(), COMPLETE_S) as operator:
            names = sorted(set(names_of(operator)))
    except (FencelockError, Unanswered):
        return []
    return [name for name in names if name.startswith(incomplete) and name.isprintable()]


def complete_lock(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of held locks, for a shell."""
    return _completed(
        ctx,
        incomplete,
        lambda operator: (
            one.lock for one in operator.locks(incomplete) if KIND_END not in one.lock
        ),
    )


def complete_object(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of held locks and of other objects, for a shell."""
    kinds = [kind for kind in object_kinds() if incomplete and kind.startswith(incomplete)]
    prefixes = [incomplete, *(f"{kind}{MARK}" for kind in kinds)]
    return _completed(
        ctx,
        incomplete,
        lambda operator: (
            object_shown(one.lock)
            for prefix in prefixes
            for one in listed(operator, prefix)
            if plain_name(one.lock).isprintable()  # Other names are shown with escapes.
        ),
    )


def listed(operator: Operator, prefix: str) -> Iterator[ListedLock | ListedObject]:
    """Yield the held locks, then the other objects, whose names begin with ``prefix``.

    Args:
        operator: the connection.
        prefix: the beginning of the names as a person types it, perhaps with a kind.

    """
    within = object_named(prefix)
    if not prefix.startswith(f"{LOCK}{MARK}"):
        yield from operator.locks(within)
        yield from operator.objects(within)
        return
    yield from (one for one in operator.locks(within) if not kind_of(one.lock))


def complete_node(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of nodes, for a shell."""
    return _completed(
        ctx,
        incomplete,
        lambda operator: (name for node in operator.survey().statuses for name in node.nodes),
    )


def complete_session(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the handles of sessions, for a shell."""
    return _completed(ctx, incomplete, lambda operator: (one.id for one in operator.sessions()))


ObjectArgument = Annotated[
    str,
    typer.Argument(
        help="The name of a lock, or the kind and name of another object: semaphore:printers.",
        autocompletion=complete_object,
    ),
]


OperatorOption = Annotated[
    str | None,
    typer.Option("--operator", help="Your name, for the record. Default: USER@HOST."),
]
DoneJsonOption = Annotated[
    bool, typer.Option("--json", help="Print what was done as one JSON object.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))
_ENVELOPE = frozenset({"session", "request"})
"""Fields that only match a reply with its request; of no use to a reader."""


def as_plain(value: Any) -> Any:
    """Return a message, with all that is in it, as JSON values: fields become keys.

    The name of an object becomes the name that commands accept.
    """
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return _keyed({name: getattr(value, name) for name in names if name not in _ENVELOPE})
    if hasattr(value, "_asdict"):
        return _keyed(value._asdict())
    if isinstance(value, tuple):
        return [as_plain(part) for part in cast("Sequence[object]", value)]
    return value


def _keyed(parts: dict[str, Any]) -> dict[str, Any]:
    return {
        name: object_spelled(part) if name == "lock" else as_plain(part)
        for name, part in parts.items()
    }


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


def address(contender: Contender) -> str:
    """Return the ids by which the cluster knows an owner: node, session and owner.

    The session of a client has the client's id, which stands for its node.
    """
    node = "" if contender.session.startswith(f"{contender.node}.") else contender.node
    parts = (node, contender.session, contender.owner)
    return printable("/".join(part for part in parts if part))


def person(contender: Contender) -> str:
    """Return an owner's label, or its ids if it has none."""
    return printable(contender.label) or address(contender)


def in_full(contender: Contender) -> str:
    """Return an owner's label, if it has one, and its ids."""
    if not contender.label:
        return address(contender)
    return f"{printable(contender.label)} ({address(contender)})"


def share_of(lock: LockStatus, one: Contender, *, wants: bool) -> str:
    """Return the share that a holder has of an object, or that a waiter ``wants``.

    It is empty for a lock.
    """
    match kind_of(lock.lock):
        case _ if not kind_of(lock.lock) or lock.left is not None:
            return ""
        case kind if kind == RWLOCK:
            verb = "write" if one.times == lock.permits else "read"
            return f" to {verb}" if wants else f" {verb}s"
        case kind if kind == ELECTION:
            return " to lead" if wants else " leads"
        case _:
            return f" {one.times} of {lock.permits}"


def progress_of(one: LockStatus | ListedObject) -> str:
    """Return the progress of an object that nobody can hold; empty for other objects."""
    return "" if one.left is None else f"{one.left} of {one.permits} left"
