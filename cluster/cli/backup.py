"""``fencelock backup``, ``restore`` and ``repair``: tables in files, journals of stopped nodes."""

from __future__ import annotations

import getpass
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from fencelock.actors.error import ConfigError, UnavailableError
from fencelock.cluster.cli.exit_status import ExitStatus, at_terminal, say
from fencelock.cluster.cli.formatting import how_many
from fencelock.cluster.cli.screen import confirm
from fencelock.cluster.cli.serve import CONFIG_PATH, ConfigOption, NodeIdOption
from fencelock.cluster.cli.target import ASK, AskOptions, connected_to

if TYPE_CHECKING:
    from fencelock.actors.api.backup_message import BackupPart
    from fencelock.actors.api.cluster_message import NodeStatus
    from fencelock.cluster.client.client import Client
    from fencelock.cluster.node.journal_rules import Impossible
    from fencelock.cluster.node.storage.backup import BackupHeader

AGAIN_S = 0.05
"""Pause before a node that is making its snapshot is asked again (s)."""

LAG_S = 10.0
"""Time for a follower to apply the slots that were decided when the command began (s)."""


def backup(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    given: AskOptions = ASK,
) -> None:
    """Write all locks, sessions and waits of a running [bold]paxos[/bold] cluster to a file.

    The cluster continues to serve. The file contains everything that was decided
    before the command began. A follower sends it, if one answers, so that the
    leader is not slowed down. Without a majority, any member sends what it knows,
    and the command warns that the last changes may be missing.

    Only you can read the file (mode 0600), since it names locks and clients, and
    has the secrets of sessions: with one of them, and without keys, anybody could
    release the locks of that session, here and in a restored cluster. Keep it as
    you keep a password, on another machine. `head -c 400 FILE` shows what it is.

    For example:

      [cyan]fencelock backup orders-monday.backup[/cyan]

      [cyan]fencelock restore orders-monday.backup --check[/cyan] (is the file complete?)

    """
    _check_free(file)
    where = given.named.target()
    why = "no node answers"
    with connected_to(where, given.timeout) as operator:
        statuses = operator.survey().statuses
        least = _last_slot(operator, statuses)
        if not least:
            typer.echo("No majority answers: the last changes may be missing.", err=True)
        for source in _in_order(statuses):
            try:
                header, size = _fetch(operator, source, where.cluster, file, least)
            except UnavailableError as error:
                why = str(error)
                say(f"{source.node}: {why}", err=True)
                continue
            follower = "a follower" if source.leader else "a member"
            kind = "the leader" if source.leader == source.node else follower
            say(f"Wrote {file}: {in_words(header)}, {decimal(size)}, from {kind}.")
            return
    say(f"Nothing was written: {why}", err=True)
    raise typer.Exit(ExitStatus.FAILED)


@contextmanager
def _disk_errors(what: str) -> Generator[None]:
    """Raise an error of the file system as one that tells the user what failed."""
    from fencelock.cluster.node.storage.backup import BackupFailedError  # noqa: PLC0415 (not for --help)

    try:
        yield
    except OSError as error:
        named = f": {error.filename}" if error.filename else ""
        raise BackupFailedError(f"{what}: {error.strerror}{named}") from error


def in_words(header: BackupHeader) -> str:
    return (
        f'cluster "{header.cluster}" before slot {header.slot}, as of {header.date}, fences up to '
        f"{header.fence}"
    )


def _check_free(file: Path) -> None:
    if file.exists():
        raise ConfigError(f"{file} exists already: a backup never replaces a file")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {file.absolute().parent}")


def _last_slot(operator: Client, statuses: Sequence[NodeStatus]) -> int:
    """Return a slot after everything decided so far; 0 if no majority answers."""
    if not any(status.ready for status in statuses):
        return 0
    try:
        return operator.status("backup").slot  # A linearizable read of a lock, which may be free.
    except UnavailableError:
        return 0


def _in_order(statuses: Sequence[NodeStatus]) -> list[NodeStatus]:
    """Return the nodes in the order in which they are asked: the leader comes last."""
    return sorted(statuses, key=lambda one: (one.leader == one.node, not one.ready))


def _fetch(
    operator: Client, source: NodeStatus, cluster: str, file: Path, least: int
) -> tuple[BackupHeader, int]:
    """Write the backup that one node sends; return its header and its size (bytes)."""
    from fencelock import __version__  # noqa: PLC0415 (not for --help)
    from fencelock.actors.table.wire import TablePart  # noqa: PLC0415
    from fencelock.cluster.node.storage.backup import BackupHeader, BackupWriter  # noqa: PLC0415
    from fencelock.transport.codec import decode  # noqa: PLC0415

    date = datetime.now(UTC).isoformat(timespec="seconds")
    first = _first_part(operator, source.node, least)
    table = decode(first.content)
    assert isinstance(table, TablePart)
    header = BackupHeader(
        cluster=cluster,
        protocol=source.protocol,
        node=first.node,
        date=date,
        slot=first.slot,
        time_ms=first.time_ms,
        fence=table.head.fence,
        parts=first.count,
        release=__version__,
    )
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    with (
        _disk_errors(f"{file} cannot be written"),
        BackupWriter(file, header) as writer,
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
    ):
        about = len(first.content) * first.count  # All parts but the last are of about one size.
        task = progress.add_task(f"from {first.node}", total=about)
        writer.add(first.content)
        for chunk in range(1, first.count):
            progress.update(task, completed=writer.bytes)
            writer.add(operator.backup_part(first.node, first.slot, chunk).content)
        progress.update(task, completed=writer.bytes, total=writer.bytes)
        writer.finish()
    return header, writer.bytes


def _first_part(operator: Client, node: str, least: int) -> BackupPart:
    """Return the first part of a snapshot of slot ``least`` or a later one, once it is made."""
    ends = time.monotonic() + LAG_S
    part = operator.backup_part(node)
    while part.slot < least:
        if time.monotonic() > ends:
            text = f"node {node} has applied only slots up to {part.slot} of {least}"
            raise UnavailableError(text)
        time.sleep(AGAIN_S)
        part = operator.backup_part(node)
    while not part.count:
        time.sleep(AGAIN_S)
        part = operator.backup_part(node, part.slot)
    return part


LOSSES = """\
What may be lost:
- everything that the old cluster decided after the backup. In the new cluster, a lock that was
  granted since then is free or has an earlier holder. Its last holder may still act on it: only
  storage that checks fences refuses its writes.
- the old cluster. If a majority of its nodes can still be started, start them instead: that loses
  nothing.
"""


def restore(
    file: Annotated[Path, typer.Argument(help="A file that `fencelock backup` wrote.")],
    config: Annotated[
        Path, typer.Option(help="The configuration of the NEW cluster: another cluster id.")
    ] = CONFIG_PATH,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the file and describe it.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Move data folders that are not empty aside, after a warning and a question.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Make the data folders of a [bold]new[/bold] paxos cluster from a backup.

    Use it when a majority of the members is lost for good. The new cluster begins with
    the locks, sessions and waits of the backup. Its fences begin 2**40 above the
    highest of the backup, since the old cluster may have served after the backup.

    First write a configuration with another cluster id and any number of nodes. One
    run makes the folders of all nodes: move each to its machine, and keep no copy.
    Then start all nodes, and connect clients with the new id. A lock stays held until
    its session's time to live has passed, or `fencelock release` frees it.

    For example:

      [cyan]fencelock init --cluster orders-2 --config orders-2.toml[/cyan]

      [cyan]fencelock restore orders-monday.backup --config orders-2.toml[/cyan]

    """
    from fencelock.cluster.node import restore as restoring  # noqa: PLC0415 (pydantic: not for --help)
    from fencelock.cluster.node.config import load  # noqa: PLC0415
    from fencelock.cluster.node.storage.backup import read_backup  # noqa: PLC0415

    with _disk_errors(f"{file} cannot be read"):
        header, parts = read_backup(file)
    table = restoring.check_parts(header, parts)
    if check:
        typer.echo(f"{file} is complete: {in_words(header)}, {how_many(len(parts), 'part')}.")
        return
    settings = load(config)
    restoring.check_target(header, settings)
    taken = restoring.occupied(settings)
    if taken:
        _check_replaceable(header, taken, config, force=force, yes=yes)
    with _disk_errors("the folders cannot be made"):
        for folder, name in restoring.restore(header, table, settings).items():
            typer.echo(f"{folder} was moved to {name}")
    folders, fence = restoring.folders_of(settings), header.fence + restoring.FENCE_MARGIN
    typer.echo(
        f'Restored cluster "{settings.cluster}" from {in_words(header)}. Its fences begin above '
        f"{fence}.\nMove each folder to its machine, keep no copy, and start all nodes:\n"
    )
    for node, folder in folders.items():
        typer.echo(f"  fencelock serve --config {config} --id {node}    # its data: {folder}")


def _check_replaceable(
    header: BackupHeader, taken: Mapping[Path, str], config: Path, *, force: bool, yes: bool
) -> None:
    """Print the possible losses if folders are replaced, and return if the user confirms it."""
    found = "\n".join(f"  {folder}: {content}" for folder, content in taken.items())
    if not force:
        raise ConfigError(
            f"these folders are not empty:\n{found}\nName another data folder in {config}, or use "
            "--force to move these aside"
        )
    typer.echo(f"--force moves these folders aside:\n{found}\n", err=True)
    typer.echo(f"The backup: {in_words(header)}.\n{LOSSES}", err=True)
    if yes:
        return
    if not at_terminal():
        raise ConfigError("no terminal to confirm at: read what may be lost, then add --yes")
    confirm("Replace the folders?", declined="Nothing was changed.")


SHOWN_VOTES_MAX = 20

SENT = (
    "A member that was broken or forged sent them, or this disk was altered: find out which node "
    "logs them as the sender, and replace that node. "
)

WHY = {
    "paxos": (
        "They are not chosen: every honest member refuses such a proposal, so no majority has it, "
        f"and what the cluster has acknowledged does not depend on it. {SENT}Without these votes "
        "the node keeps all its promises, and all its other votes. In place of an impossible lease "
        "it waits for the longest that can be configured."
    ),
    "bakery": (
        f"No honest leader votes for such leases. {SENT}The node keeps all its promises, and knows "
        "who leads. In place of each such lease it reports the longest that can be configured, two "
        "weeks. If two leaders are lost at once, the cluster may wait for that: then replace this "
        "node instead. Move its folder away, start it with an empty one, and run: fencelock replace"
    ),
}
"""The reason why it is safe to remove what a journal of each protocol cannot have."""


def repair(
    node_id: NodeIdOption,
    config: ConfigOption = CONFIG_PATH,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    skip: Annotated[
        int | None,
        typer.Option(
            "--skip",
            metavar="SLOT",
            min=1,
            help="Instead: refuse the commands of this slot of the log that damage the table.",
        ),
    ] = None,
    operator: Annotated[
        str, typer.Option(help="With --skip: your name, for the journal. Default: the user's.")
    ] = "",
) -> None:
    """Remove from the journal of a [bold]stopped node[/bold] votes that no honest member can have.

    It shows them, explains why it is safe, asks, and keeps a copy of the data folder
    beside it. If the journal cannot be mended, it says how to replace the node.

    With --skip (`paxos`) it lets a member go on that stops at a [bold]poison command[/bold]: a
    bug makes it raise in the middle of a change of the table, so every member stops at
    its slot, which the log names. Stop all members, run this for each of them, and
    start them again. They apply the slot as always. If a command damages the table, they
    return to the table before the slot, and refuse that command alone. "fencelock audit"
    shows it. A skip of a sound slot has no effect, and a member that you forgot stops
    again, so members never differ.

    For example:

      [cyan]fencelock repair --id n1[/cyan] (where n1 is stopped)

      [cyan]fencelock repair --id n1 --skip 41233[/cyan] (and for n2 and n3)

    """
    from fencelock.cluster.node import repair as repairing  # noqa: PLC0415 (pydantic: not for --help)
    from fencelock.cluster.node.config import load  # noqa: PLC0415

    read = load(config)
    if skip is not None:
        by = operator or getpass.getuser()
        typer.echo(repairing.skip_slot(read, node_id, skip, by))
        return

    def allow(wrong: Sequence[Impossible]) -> None:
        _explain(node_id, wrong, WHY[read.protocol])
        if not yes:
            confirm("Remove them?", declined="Nothing was removed.")

    removed = repairing.remove_votes(read, node_id, allow)
    if removed is None:
        typer.echo(f"The journal of {node_id} has no vote that an honest member cannot have.")
        return
    typer.echo(
        f"{removed.votes} removed. The folder as it was: {removed.copy}. Start {node_id} now."
    )


def _explain(node: str, wrong: Sequence[Impossible], why: str) -> None:
    votes = how_many(len(wrong), "vote")
    typer.echo(f"The journal of {node} has {votes} that no honest member can have:")
    for one in wrong[:SHOWN_VOTES_MAX]:
        typer.echo(f"  {one.why}")
    if len(wrong) > SHOWN_VOTES_MAX:
        typer.echo(f"  and {len(wrong) - SHOWN_VOTES_MAX} more")
    typer.echo(why)
