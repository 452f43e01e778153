"""``fencelock members``, and the commands that change them: ``found``, ``join`` and others."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import typer
from rich.console import RenderableType

from fencelock.actors.api.membership_message import (
    ChangeMembers,
    MemberAction,
    MembersChanged,
    MembersRead,
    NodeReport,
    NodeRole,
)
from fencelock.actors.error import ConfigError, MembershipError, UnavailableError
from fencelock.actors.message import MS_PER_S
from fencelock.cluster.cli.completion import complete_node
from fencelock.cluster.cli.exit_status import ExitStatus, say
from fencelock.cluster.cli.formatting import MAJORITY_LOST, as_plain, duration, how_many
from fencelock.cluster.cli.screen import Column, Rows, View, confirm, json_view, line
from fencelock.cluster.cli.target import (
    ASK,
    LOOK,
    AskOptions,
    LookOptions,
    WatchOption,
    why_unserved,
)
from fencelock.cluster.guarantee import VOTING
from fencelock.cluster.log import printable

if TYPE_CHECKING:
    from fencelock.cluster.client.client import Client


CHANGE_RETRY_S = 0.25
"""Pause before a change that is not done is asked for again (s)."""

LINE_S = 2.0
"""Shortest interval between lines of progress (s)."""

CHANGE_REPLY_S = 3.0
"""How long a reply may take until the nodes are asked why there is none (s)."""

SILENT_MEMBER_MS = 2_000
"""A member that was silent for this long is assumed not to run (ms)."""

VOTELESS = (NodeRole.OBSERVER, NodeRole.NON_VOTING)

_AGE = re.compile(r"\d+ ms")

KIB = 1024
R = TypeVar("R", MembersRead, MembersChanged)
NodeArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The node, as `fencelock members` names it.",
        autocompletion=complete_node,
    ),
]
WaitOption = Annotated[float, typer.Option("--wait", help="How long to wait for the change (s).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


class ChangeOptions(NamedTuple):
    """The options of a command that changes the members."""

    given: AskOptions = ASK
    wait: WaitOption = 600.0
    as_json: JsonOption = False

    def carry_out(self, action: MemberAction, node: str) -> None:
        with self.given.connected() as operator:
            change = ChangeMembers(action=action, node=node)
            carry_out(operator, change, self.wait, as_json=self.as_json)


CHANGE_OPTIONS = ChangeOptions()


def members(
    given: LookOptions = LOOK, as_json: JsonOption = False, watch: WatchOption = False
) -> None:
    """Show [bold]which nodes belong to the cluster[/bold], who leads, and who is behind.

    Leaders and members vote. Observers have the same locks and serve
    clients, but do not vote. `behind` counts the slots of the log that a node
    has not applied; with `bakery`, which has three leaders, the epochs.

    For example:

      [cyan]fencelock members[/cyan] (where cluster.toml is)

      [cyan]fencelock members --connect tcp://127.0.0.1:4041 --json[/cyan]

    """

    def view(operator: Client) -> View:
        read = operator.members()
        leads = any(report.role is NodeRole.LEADER for report in read.nodes)
        code = 0 if leads else ExitStatus.UNSERVED
        if as_json:
            plain = as_plain(read)
            for node, report in zip(plain["nodes"], read.nodes, strict=True):
                node |= {"role": report.role.name.lower(), "journal": f"{report.journal:x}"}
            return json_view(plain, code)
        parts: list[RenderableType] = [line(headline(read), "bold"), members_table(read.nodes)]
        advice = map(advice_on, read.nodes) if leads else advice_without_leader(read)
        parts += [line(text) for text in advice if text is not None]
        return View(parts, code)

    given.show(view, watch=watch)


def headline(read: MembersRead) -> str:
    count = sum(report.role is not NodeRole.OBSERVER for report in read.nodes)
    leads = [report.node for report in read.nodes if report.role is NodeRole.LEADER]
    leader = "no node leads, as far as this node knows"
    if leads:
        leader = f"{', '.join(leads)} lead{'' if len(leads) > 1 else 's'}"
    return f"{how_many(count, 'member')}; {leader}; {how_many(read.view, 'change')} so far"


def members_table(reports: tuple[NodeReport, ...]) -> Rows:
    columns = [Column(name) for name in ("node", "role", "address")]
    columns += [Column(name, right=True) for name in ("applied", "behind", "silent")]
    rows = [
        (
            report.node,
            _role(report.role),
            report.endpoint or "?",
            str(report.applied),
            "?" if report.lag is None else str(report.lag),
            "never" if report.last_message_ms is None else duration(report.last_message_ms),
            report.version or "?",
        )
        for report in reports
    ]
    return Rows([*columns, Column("version")], rows)


def advice_on(report: NodeReport) -> str | None:
    match report.role:
        case NodeRole.OBSERVER:
            return (
                f"{report.node} is an observer. To make it a member: fencelock join {report.node}"
            )
        case NodeRole.NON_VOTING:
            return (
                f"{report.node} is a member whose journal was lost or is not its own: it does not "
                f"vote. To give it a vote again: fencelock replace {report.node}"
            )
        case NodeRole.DOWN:
            return (
                f"{report.node} is down. To give its place to another node, such as n9: "
                f"fencelock replace {report.node} n9"
            )
        case NodeRole.LEADER | NodeRole.MEMBER:
            return None


def advice_without_leader(read: MembersRead) -> Iterator[str]:
    """Yield what works while no node leads: none joins, leaves or is replaced then."""
    silent = [
        one.node
        for one in read.nodes
        if one.role in (NodeRole.MEMBER, NodeRole.DOWN)
        and (one.last_message_ms is None or one.last_message_ms > SILENT_MEMBER_MS)
    ]
    yield "No node leads, so the members cannot be changed now. An election takes a second."
    voteless = [one.node for one in read.nodes if one.role is NodeRole.NON_VOTING]
    for node in voteless:
        yield (
            f"{node} is a member whose journal was lost or is not its own: it does not vote. It "
            "gets its vote back, by fencelock replace, only from a majority that votes."
        )
    if silent:
        each = "with its" if len(silent) == 1 else "each with its"
        yield f"If this lasts, start {', '.join(silent)} again, {each} own data folder."
    if silent or voteless:
        yield f"{MAJORITY_LOST}."


def _role(role: NodeRole) -> str:
    return "no vote" if role is NodeRole.NON_VOTING else role.name.lower()


def join(node: NodeArgument, how: ChangeOptions = CHANGE_OPTIONS) -> None:
    """Make a running node [bold]a member[/bold], which votes.

    First start the node with the address of one that runs: it fetches the
    locks from a member that does not lead, and serves clients. Then run this
    command on any machine. It shows how far behind the node is, and the
    node votes once it has caught up. Clients connect to it by themselves.

    For example, to let a cluster of three survive the loss of two nodes:

      [cyan]fencelock serve --join tcp://10.0.0.1:4040 --id n4[/cyan] (on its machine; likewise n5)

      [cyan]fencelock join n4[/cyan]

      [cyan]fencelock join n5[/cyan]

    """
    how.carry_out(MemberAction.JOIN, node)


def leave(node: NodeArgument, how: ChangeOptions = CHANGE_OPTIONS) -> None:
    """Make a running member [bold]an observer[/bold], which does not vote.

    If it leads, another member takes over first. It may then be stopped. A
    leave is refused if the remaining members could not form a majority that
    answers.

    For example, to go from four members to three:

      [cyan]fencelock leave n4[/cyan]

    """
    how.carry_out(MemberAction.LEAVE, node)


def remove(
    node: NodeArgument,
    how: ChangeOptions = CHANGE_OPTIONS,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove it even if it runs, as `fencelock leave` does.")
    ] = False,
) -> None:
    """Remove a member [bold]that no longer runs[/bold].

    A member that is gone for good still counts for the majority, so the next
    loss is more dangerous: remove it, or give its place to another node (see
    `fencelock replace`). A member that runs is not removed: see `fencelock leave`.

    For example:

      [cyan]fencelock members[/cyan] (n3 was heard from 2h ago)

      [cyan]fencelock remove n3[/cyan]

    """
    with how.given.connected() as operator:
        if not yes and is_running(operator, node, how.wait):
            raise MembershipError(
                f"{node} runs: run fencelock leave {node} to make it an observer, which may then "
                "be stopped (remove --yes does the same)"
            )
        change = ChangeMembers(action=MemberAction.LEAVE if yes else MemberAction.REMOVE, node=node)
        carry_out(operator, change, how.wait, as_json=how.as_json)


def transfer(node: NodeArgument, how: ChangeOptions = CHANGE_OPTIONS) -> None:
    """Make another member [bold]the leader[/bold], without a pause for clients.

    For example, before maintenance of the leader's machine:

      [cyan]fencelock transfer n2[/cyan]

    """
    how.carry_out(MemberAction.TRANSFER, node)


def replace(
    node: Annotated[
        str,
        typer.Argument(metavar="OLD", help="The member to replace.", autocompletion=complete_node),
    ],
    replacement: Annotated[
        str | None, typer.Argument(metavar="NEW", help="The node to add. Default: OLD itself.")
    ] = None,
    how: ChangeOptions = CHANGE_OPTIONS,
) -> None:
    """Give the place of a member [bold]to another node[/bold], or to itself after its disk died.

    First start the new node with an empty data folder. Without NEW, it is the
    same node: what it promised on the lost disk is void, and it votes under its
    new journal from then on.

    For example:

      [cyan]fencelock serve --id n2[/cyan] (after its disk was replaced)

      [cyan]fencelock replace n2[/cyan]

      [cyan]fencelock replace n3 n6[/cyan] (n6 runs, n3 never will again)

    """
    with how.given.connected() as operator:
        journal = 0 if replacement else new_journal_of(operator, node, how.wait)
        change = ChangeMembers(
            action=MemberAction.REPLACE, node=node, journal=journal, replacement=replacement or node
        )
        carry_out(operator, change, how.wait, as_json=how.as_json)


MEANING = (
    "This begins a new cluster of {nodes}: it has no locks. If it has run before, its nodes have "
    "lost their disks: members that joined later may still run, and this would begin a second "
    "cluster beside theirs"
)


def found(
    given: AskOptions = ASK,
    wait: Annotated[float, typer.Option("--wait", help="How long to wait for the nodes (s).")] = 60,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Begin [bold]a new cluster[/bold] of the configured nodes, once, when all of them run.

    Nodes with empty data folders wait for this command, since they cannot know
    whether their cluster is new or has only lost their disks. It does nothing if
    any of them knows the cluster, or a member that joined later can be reached. If
    the command gives up, nothing is begun later. `fencelock serve --found`, given to each node,
    does the same at its start.

    For example:

      [cyan]fencelock serve --id n1[/cyan] (and n2 and n3, each on its machine)

      [cyan]fencelock found[/cyan]

    """
    with given.connected() as operator:
        nodes = operator.survey().statuses
        others = sorted({node.protocol for node in nodes} - VOTING)
        if others:
            raise ConfigError(f"{others[0]} needs no founding: its nodes serve once they run")
        names = sorted({name for node in nodes for name in node.nodes})
        if not any(node.ready for node in nodes) and not yes:
            say(MEANING.format(nodes=", ".join(names)), err=True)
            confirm("Begin it?", declined="Nothing was begun.")
        change = ChangeMembers(action=MemberAction.FOUND, node=names[0])
        carry_out(operator, change, wait, as_json=as_json)


def new_journal_of(operator: Client, node: str, wait: float) -> int:
    """Return the journal under which ``node`` does not vote yet, once a report shows it.

    A report from before this command began proves nothing: the node may have restarted since.
    """
    progress = ChangeProgress(wait)
    while True:
        reports, leads, unknown = _reports(operator, "replaced")
        report = reports.get(node)
        if report is not None and report.role in VOTELESS:
            return report.journal
        last_ms = None if report is None else report.last_message_ms
        # Without a leader it may be its own report.
        if leads and last_ms is not None and last_ms < progress.waited_s() * MS_PER_S:
            raise MembershipError(
                f"{node} votes: there is nothing to replace. If its disk is to be replaced, stop "
                "it, start it with an empty data folder, and run this again"
            )
        text = f"{node} has sent no message yet: start it with an empty data folder"
        progress.pause(unknown or text)


def is_running(operator: Client, node: str, wait: float) -> bool:
    """Return whether ``node`` votes, once the leader knows.

    It runs if it has answered since this command began. Before that it may have been stopped.
    """
    progress = ChangeProgress(wait)
    while True:
        reports, leads, unknown = _reports(operator, "removed")
        report = reports.get(node)
        if reports and (report is None or report.role in VOTELESS):
            return False
        last_ms = None if report is None else report.last_message_ms
        waited_ms = progress.waited_s() * MS_PER_S
        if last_ms is not None and last_ms < waited_ms:
            return True
        if leads and (waited_ms if last_ms is None else last_ms) > SILENT_MEMBER_MS:
            return False
        text = f"it is not known yet whether {node} runs"
        progress.pause(unknown or text, shown=not leads)


def _reports(operator: Client, act: str) -> tuple[dict[str, NodeReport], bool, str]:
    """Return the reports by node, whether a node leads, and why no member can be changed now."""
    read = promptly(operator, operator.members)
    if isinstance(read, str):
        return {}, False, read
    leads = any(report.role is NodeRole.LEADER for report in read.nodes)
    leaderless = f"no node leads, so no member can be {act}: start the other members first"
    return {report.node: report for report in read.nodes}, leads, "" if leads else leaderless


def carry_out(operator: Client, change: ChangeMembers, wait: float, *, as_json: bool) -> None:
    """Ask for ``change`` until it is done, show the progress, and print what it led to."""
    if wait <= 0:
        raise ConfigError(f"--wait is {wait:g}, and must be above 0 (s)")
    progress, waited = ChangeProgress(wait), False
    while not (reached := _asked(operator, change)).done:
        progress.pause(progress.described(reached))
        waited = True
    if as_json:
        typer.echo(json.dumps(as_plain(reached), indent=2))
        return
    if change.action is MemberAction.TRANSFER:
        say(f"{change.node} leads.")
        return
    if not waited:
        say(f"Nothing had to be changed for {change.node}.")
    say(f"The members are {', '.join(reached.members)}.")


def _asked(operator: Client, change: ChangeMembers) -> MembersChanged:
    """Return the progress of ``change``; not done if no node can report it."""
    reached = promptly(operator, lambda: operator.change_members(change))
    if isinstance(reached, str):
        return MembersChanged(done=False, detail=reached, view=0, members=())
    return reached


def promptly(operator: Client, ask: Callable[[], R]) -> R | str:
    """Return the reply; or the reasons why no node can give one now.

    Perhaps a new leader is being elected, or the cluster is not founded.
    """
    operator.reply_by(time.monotonic() + CHANGE_REPLY_S)
    try:
        return ask()
    except UnavailableError as error:
        operator.reply_by(time.monotonic() + CHANGE_REPLY_S)
        return why_unserved(operator, error)


class ChangeProgress:
    """Waits up to ``wait`` seconds for a change, and prints what is left at intervals."""

    def __init__(self, wait: float) -> None:
        self.left: dict[str, tuple[int, float]] = {}
        """The slots, and the bytes, that were left at the first look, and its time (s)."""
        self._wait = wait
        self._began = time.monotonic()
        self._shown = ("", 0.0)

    def waited_s(self) -> float:
        return time.monotonic() - self._began

    def pause(self, text: str, *, shown: bool = True) -> None:
        """Wait a moment; end the command if it has waited long enough. ``text`` says for what."""
        if self.waited_s() >= self._wait:
            advice = "Run the command again to continue"
            say(f"not done within {self._wait:g} s: {text}. {advice}", err=True)
            raise typer.Exit(ExitStatus.FAILED)
        if shown:
            self.show(text)
        time.sleep(CHANGE_RETRY_S)

    def described(self, reached: MembersChanged, now: float | None = None) -> str:
        """Return the condition that ``reached`` waits for, and the rest to fetch."""
        now = time.monotonic() if now is None else now
        slots = reached.slots_left
        if not slots:
            return reached.detail
        parts = [f"{slots:,} slots"]
        left_ms = self._time_left_ms("slots", slots, now)
        if reached.bytes_left:  # Of a snapshot; its slots arrive all at once.
            parts.append(f"{-(-reached.bytes_left // KIB):,} KiB")
            left_ms = self._time_left_ms("bytes", reached.bytes_left, now)
        if left_ms:
            parts.append(f"about {duration(left_ms)}")
        return f"{reached.detail} ({', '.join(parts)} left)"

    def _time_left_ms(self, unit: str, left: int, now: float) -> int:
        """Return the time that the rest takes at the pace since the first look, or 0 if unknown."""
        first, at = self.left.get(unit, (left, now))
        if left >= first:
            self.left[unit] = left, now
            return 0
        return round(1_000 * left * (now - at) / (first - left))

    def show(self, text: str) -> None:
        """Print ``text`` to standard error, unless it is unchanged or too soon after the last."""
        shown, at = self._shown
        now = time.monotonic()
        same = _AGE.sub("", text)  # Ages grow by themselves.
        if same == shown or (at and now - at < LINE_S):
            return
        self._shown = same, now
        print(printable(text), file=sys.stderr, flush=True)
        if not at:
            print(f"This waits for up to {self._wait:g} s (--wait).", file=sys.stderr, flush=True)
