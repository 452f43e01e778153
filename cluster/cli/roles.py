"""``fencelock ask``, ``log`` and ``trace``: the roles of running nodes, and what they log."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from fencelock.actors.api.role_request import (
    LOG_LEVELS,
    Fact,
    LogSetting,
    ReadTrace,
    RoleDescription,
    RoleRequest,
    RoleState,
    SetLog,
)
from fencelock.actors.error import ConfigError, FencelockError
from fencelock.cluster.cli.completion import complete_node, complete_role
from fencelock.cluster.cli.exit_status import say
from fencelock.cluster.cli.target import ASK, DO, AskOptions, DoOptions
from fencelock.cluster.diagram import ROUTINE, Event, chosen, merged, space_time, text_of

if TYPE_CHECKING:
    from fencelock.cluster.client.client import Client

POLL_S = 0.5
"""Pause between two looks at the traces of nodes (s)."""

TRACE_KEEP_MS = 10_000
"""Time for which nodes keep lines after each look (ms)."""

SHOWN_EVENTS_MAX = 400
"""Events of a diagram, unless the user says another number."""


def _roles_in(text: str) -> tuple[str, ...]:
    roles = tuple(part.strip() for part in text.split(",") if part.strip())
    return () if roles == ("all",) else roles


def ask(
    role: Annotated[
        str,
        typer.Argument(
            metavar="NODE/ROLE", help="The role, as in n1/clock.", autocompletion=complete_role
        ),
    ],
    request: Annotated[
        str, typer.Argument(help="The request: ReadState, DescribeRole, ReadClock, ...")
    ] = "ReadState",
    fields: Annotated[
        list[str] | None, typer.Argument(metavar="[FIELD=VALUE]...", help="Its fields.")
    ] = None,
    how: DoOptions = DO,
) -> None:
    """[bold]Ask a role[/bold] of a node, and print its reply.

    Every role replies to ReadState and DescribeRole. What else it takes, it says when
    it refuses a request. Where keys are used, only operators may ask.

    For example:

      [cyan]fencelock ask n1/clock[/cyan]

      [cyan]fencelock ask n2/process ReadQueues --json[/cyan]

    """
    message = _request(request, fields or [])
    with how.connected() as client:
        reply: Any = client.ref(role).ask(message, timeout=how.given.timeout)
    if how.as_json:
        typer.echo(json.dumps(msgspec.to_builtins(_named(reply)), indent=2))
        return
    facts: tuple[Fact, ...] = ()
    match reply:
        case RoleState():
            facts = reply.facts
        case RoleDescription():
            facts = reply.summary
        case _:
            for name, value in _named(reply).items():
                say(f"{name}: {value}")
    for fact in facts:
        say(f"{fact.name}: {fact.value or 'none'}")


def _named(reply: Any) -> dict[str, Any]:
    if isinstance(reply, RoleDescription):
        return reply._asdict()
    return {name: getattr(reply, name) for name in reply.__struct_fields__}


def _request(name: str, fields: list[str]) -> RoleRequest[Any]:
    declared = cast("list[type[RoleRequest[Any]]]", RoleRequest.__subclasses__())
    kinds = {kind.__name__: kind for kind in declared}
    if name not in kinds:
        raise ConfigError(f"{name[:80]!a} is no request to a role; there are {', '.join(kinds)}")
    own = {one.name: one.type for one in msgspec.structs.fields(kinds[name])}
    values: dict[str, Any] = {}
    try:
        for field in fields:
            key, equals, text = field.partition("=")
            if not equals or key not in own:
                allowed = ", ".join(own) or "none"
                raise ConfigError(f"{field[:80]!a} is no FIELD=VALUE; fields of {name}: {allowed}")
            value: Any = text.split(",") if "tuple" in str(own[key]) else text
            values[key] = msgspec.convert(value, own[key], strict=False)
        return kinds[name](**values)
    except (msgspec.ValidationError, TypeError) as error:
        raise ConfigError(f"{name}: {error}") from None


def log(
    node: Annotated[str, typer.Argument(help="The node.", autocompletion=complete_node)],
    level: Annotated[
        str | None, typer.Option(help=f"The least level: {', '.join(LOG_LEVELS)}.")
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace",
            help="The roles to trace at level TRACE, separated by commas; all: every role.",
        ),
    ] = None,
    how: DoOptions = DO,
) -> None:
    """Show or change what a node [bold]logs[/bold], until it stops.

    At level TRACE a node logs every message of its roles, or of those in --trace.
    Where keys are used, only operators may do this.

    For example:

      [cyan]fencelock log n1 --level DEBUG[/cyan]

      [cyan]fencelock log n1 --level TRACE --trace process,clock[/cyan]

    """
    level = None if level is None else level.upper()
    if level is not None and level not in LOG_LEVELS:
        raise ConfigError(f"--level is {level}, and must be one of {', '.join(LOG_LEVELS)}")
    request = SetLog(level=level or "", roles=None if trace is None else _roles_in(trace))
    with how.connected() as client:
        now: LogSetting = client.ref(f"{node}/log").ask(request, timeout=how.given.timeout)
    roles = f", traced roles: {', '.join(now.roles) or 'all'}" if now.level == "TRACE" else ""
    how.done(
        {"node": node, "level": now.level, "trace": list(now.roles)},
        f"{node} logs from level {now.level} on{roles}",
    )


def trace(
    roles: Annotated[
        str, typer.Option("--roles", help="Only messages of these roles, separated by commas.")
    ] = "all",
    lock: Annotated[
        str | None, typer.Option("--lock", help="Only messages about this lock, or about none.")
    ] = None,
    without: Annotated[
        str, typer.Option("--without", help="Kinds of messages to leave out, separated by commas.")
    ] = ",".join(ROUTINE),
    seconds: Annotated[
        float, typer.Option(min=0.5, max=3600, help="For how long (s); Ctrl-C ends it early.")
    ] = 5.0,
    svg: Annotated[
        Path | None, typer.Option(help="Write the space-time diagram to this file.", metavar="FILE")
    ] = None,
    most: Annotated[
        int, typer.Option(min=1, max=10_000, help="The most events in the diagram.")
    ] = SHOWN_EVENTS_MAX,
    given: AskOptions = ASK,
) -> None:
    """Print the [bold]messages[/bold] between nodes, and with clients, by logical time.

    With --roles, also those within a node. Each line has the logical time, who
    received or sent what, and the state of the receiver after it. The diagram shows
    processes as lines, messages as arrows and holds as bars. Nodes keep the lines
    only while this command runs. Where keys are used, only operators may do this.

    For example:

      [cyan]fencelock trace --roles process,proxy --lock orders/42 --svg trace.svg[/cyan]

    """
    with given.connected() as client:
        nodes = sorted(status.node for status in client.describe())
        events = merged(_read(client, nodes, _roles_in(roles), seconds))
    left_out = tuple(part.strip() for part in without.split(","))
    events = chosen(events, lock, left_out)
    for event in events:
        say(text_of(event))
    if svg is not None:
        shown = events[:most]
        title = f"{', '.join(nodes)}: {len(shown)} of {len(events)} events"
        try:
            svg.write_text(space_time(shown, title), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--svg: {svg} cannot be written: {error.strerror}") from error
    if not events:
        text = "no such message was sent in that time. Use a lock while this runs, or set --seconds"
        say(text, err=True)


def _read(client: Client, nodes: list[str], roles: tuple[str, ...], seconds: float) -> list[Event]:
    events: list[Event] = []
    after: dict[str, int] = {}
    ends = time.monotonic() + seconds

    def look() -> None:
        for node in nodes:
            more = True
            while more:
                request = ReadTrace(after=after.get(node, 0), keep_ms=TRACE_KEEP_MS, roles=roles)
                try:
                    page = client.ref(f"{node}/log").ask(request, timeout=POLL_S * 4)
                except FencelockError as error:
                    if node not in after:
                        raise
                    say(f"{node}: {error}", err=True)
                    break
                if page.lost:
                    say(f"{node}: {page.lost} lines were lost, since it keeps the last", err=True)
                if node in after:  # The first look only asks it to keep lines.
                    events.extend(Event(node, line) for line in page.lines)
                after[node] = page.last
                more = page.more

    try:
        look()
        while time.monotonic() < ends:
            time.sleep(min(POLL_S, max(0.0, ends - time.monotonic())))
            look()
    except KeyboardInterrupt:
        look()
    return events
