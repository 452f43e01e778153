"""Restoring a backup: the data folders of a new cluster that begins with the backup's table.

The new cluster is founded here, and not when its nodes meet: each folder has a new journal, and the
record that these journals vote. So folders of two restorations never form one cluster. Frames name
the id of their cluster, which must be another than the backup's, so a node or a client of the old
cluster cannot take part in the new one.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from fencelock.actors.api.name import INT_MAX
from fencelock.actors.bootstrap import bootstrap_of
from fencelock.actors.bootstrap_message import GroupConfig, Voter
from fencelock.actors.error import ConfigError
from fencelock.actors.message import Address, Message, role_of
from fencelock.actors.paxos.config import replica_of, split
from fencelock.actors.paxos.snapshots import records_of
from fencelock.actors.table.poison import PoisonError
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import FENCE_FLOOR_MAX, ExtendSessions, TablePart
from fencelock.cluster.node.config import Config
from fencelock.cluster.node.node import identity_of
from fencelock.cluster.node.storage.backup import BackupDamagedError, BackupHeader
from fencelock.cluster.node.storage.directory import (
    LOCK_NAME,
    DirectoryLock,
    JournalDamagedError,
    name_beside,
    sync_directory,
)
from fencelock.cluster.node.storage.journal import STREAM, Journal, claim
from fencelock.cluster.node.storage.recovery import recover
from fencelock.transport.cbor import MalformedFrameError
from fencelock.transport.codec import decode, encode

FENCE_MARGIN = 1 << 40
"""The first fence of the new cluster is above the backup's highest by more than this.

The old cluster may have continued after the backup, and storage refuses fences below those it has
seen. At 10,000 grants per second the old cluster needs three and a half years to issue as many.
There is room for four million restorations of one table.
"""

STEPS_PER_ITEM, STEPS_MORE = 4, 1_000
"""Log times at which something ends, per session, claim or entry of a table, and for all the rest.

A wait may become a hold, which may have a deadline; and a leader may have moved each deadline.
"""

RESTORING_SUFFIX = ".restoring"
REPLACED_SUFFIX = ".replaced"


def check_target(header: BackupHeader, config: Config) -> None:
    if config.protocol != header.protocol:
        raise ConfigError(
            f'protocol: "{config.protocol}" cannot start from a backup of {header.protocol}'
        )
    if config.settings.paxos_memory:
        raise ConfigError(
            'paxos.durability: "memory" keeps nothing on disk that could be restored; say "fsync"'
        )
    if config.data is None:
        raise ConfigError("data: missing; a folder is needed where the journals are kept")
    if config.cluster == header.cluster:
        raise ConfigError(
            f'cluster: "{config.cluster}" is the cluster of the backup. Give the new cluster '
            f'another id, such as "{header.cluster[:60]}-2": its nodes then refuse nodes and '
            "clients of the old one, which know locks that were granted after the backup"
        )


def folders_of(config: Config) -> dict[str, Path]:
    folders = {node: config.folder_of(node) for node in config.nodes}
    return {node: folder for node, folder in folders.items() if folder is not None}


def occupied(config: Config) -> dict[Path, str]:
    """Return the folders that are not empty, each with its content in words.

    Raises:
        ConfigError: a folder is of a cluster of the same id as the new one: other nodes of that
            may be left.

    """
    folders = folders_of(config)
    return {
        folder: _content(folder, config.cluster)
        for folder in folders.values()
        if folder.exists() and any(path.name != LOCK_NAME for path in folder.iterdir())
    }


def _content(folder: Path, cluster: str) -> str:
    try:
        found = recover(folder).records.get(STREAM, ())
    except (JournalDamagedError, OSError):
        return "a journal that cannot be read"
    if not found:
        return "files that are no journal"
    known: dict[str, str] = json.loads(found[0])
    if known.get("cluster") == cluster:
        raise ConfigError(
            f'cluster: {folder} is the journal of a cluster "{cluster}" already. Give the new '
            "cluster another id; or remove the folders, if no node ever ran on them"
        )
    return f'the journal of node {known.get("node")} of cluster "{known.get("cluster")}"'


def check_parts(header: BackupHeader, parts: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the ``parts`` of the table with the fences of the new cluster."""
    try:
        chunks, _, _ = split(parts)  # The new cluster has its own members.
        table = [decode(chunk) for chunk in chunks]
        read = tuple(part for part in table if isinstance(part, TablePart))
        known = LockTable.restore(read)
    except (MalformedFrameError, ValueError, TypeError, RecursionError) as error:
        raise BackupDamagedError(
            f"the backup's table cannot be read by this release: {error}. It was written by "
            f"fencelock {header.release}; restore it with that. Nothing was restored"
        ) from error
    if known.fence != header.fence:
        raise BackupDamagedError(
            f"the backup's table has fences up to {known.fence}, and its header says "
            f"{header.fence}. Nothing was restored"
        )
    fence = known.fence + FENCE_MARGIN
    for what, last in (("fences", known.fence), ("versions", known.histories.version)):
        if last + FENCE_MARGIN > FENCE_FLOOR_MAX:
            raise BackupDamagedError(f"{what} above {last} would soon be used up")
    raised = tuple(_raised(part, fence) for part in read)
    _rehearse(LockTable.restore(raised), header)
    return tuple(map(encode, raised))


def _rehearse(table: LockTable, header: BackupHeader) -> None:
    """Do with a copy of the table what every new cluster does: extend the sessions, and end them.

    A table that raises then would stop all members at each start, and no skip would help.
    """
    due = "it begins"
    steps_max = STEPS_PER_ITEM * (len(table.sessions.by_id) + table.claims + table.maps.count)
    try:
        table.apply(table.time_ms, ExtendSessions(leader=header.node))
        for _ in range(steps_max + STEPS_MORE):
            due_ms = table.due_ms()
            if due_ms is None:
                return
            due = f"something falls due at log time {due_ms} ms"
            table.advance(max(due_ms, table.time_ms + 1))
    except PoisonError as error:
        reason = f"when {due}, it raises {error.error!r}"
    else:
        reason = f"{due} again and again"
    raise BackupDamagedError(
        f"the backup's table contradicts itself: {reason}. A cluster that begins with it would "
        "stop. Use another backup. Nothing was restored"
    )


def _raised(part: TablePart, fence: int) -> TablePart:
    """Return a part of the table with a higher fence, and with higher versions of changes."""
    head = part.head._replace(fence=fence)
    if head.version:  # Without a change so far, versions begin above the fences.
        version = head.version + FENCE_MARGIN
        head = head._replace(version=version, origin=version)
    return replace(part, head=head)


def restore(header: BackupHeader, parts: Sequence[bytes], config: Config) -> dict[Path, Path]:
    """Make the data folder of each node of ``config``.

    A folder that is not empty is moved aside: return these, with their new names. All folders are
    complete before any gets its name.
    """
    folders = folders_of(config)
    taken = occupied(config)
    with ExitStack() as stack:
        for folder in folders.values():
            if folder.exists():
                stack.callback(DirectoryLock(folder).close)
        made = _make(header, parts, config, folders)
        return _put_in_place(folders, made, taken)


def _make(
    header: BackupHeader, parts: Sequence[bytes], config: Config, folders: Mapping[str, Path]
) -> dict[str, Path]:
    """Make all folders under other names, and return these."""
    table = records_of(header.slot, header.time_ms, tuple(parts))
    made = {
        node: folder.with_name(folder.name + RESTORING_SUFFIX) for node, folder in folders.items()
    }
    journals: dict[str, Journal] = {}
    try:
        for node, folder in made.items():
            shutil.rmtree(folder, ignore_errors=True)
            journals[node] = Journal.open(folder)
        voters = tuple(
            Voter(node, claim(journal, {}, identity_of(config, node)).id)
            for node, journal in sorted(journals.items())
        )
        founded_ms = time.time_ns() // 1_000_000
        group = GroupConfig(
            to=0, group=1 + secrets.randbelow(INT_MAX), founded_ms=founded_ms, voters=voters
        )
        for node, journal in journals.items():
            _write(journal, bootstrap_of(node), (group,))
            _write(journal, replica_of(node), table)
    finally:
        for journal in journals.values():
            journal.close()
    return made


def _put_in_place(
    folders: Mapping[str, Path], made: Mapping[str, Path], taken: Collection[Path]
) -> dict[Path, Path]:
    """Give the folders their names; return those that were moved aside, with their new names."""
    aside: dict[Path, Path] = {}
    for node, folder in folders.items():
        if folder in taken:
            aside[folder] = name_beside(folder, REPLACED_SUFFIX)
            folder.rename(aside[folder])
        elif folder.exists():
            shutil.rmtree(folder)  # It is empty, but for the file of the lock.
        made[node].rename(folder)
        sync_directory(folder.parent)
    return aside


def _write(journal: Journal, role: Address, records: Sequence[Message]) -> None:
    journal.write_all([(role_of(role), encode(record)) for record in records])
