"""Repairs of the journal of a stopped node: impossible votes go, poison commands are skipped."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from fencelock.actors.api.request import Command
from fencelock.actors.bakery.journal import why_implausible
from fencelock.actors.error import ConfigError
from fencelock.actors.paxos.journal import recover
from fencelock.actors.paxos.wire import Skip
from fencelock.actors.table.poison import named
from fencelock.cluster.node.config import Config
from fencelock.cluster.node.journal_rules import JOURNAL_RULES, Impossible, check_usable, unusable
from fencelock.cluster.node.lock_machine import read_command
from fencelock.cluster.node.node import records_of
from fencelock.cluster.node.storage.directory import JournalDamagedError, name_beside
from fencelock.cluster.node.storage.journal import Journal
from fencelock.cluster.node.storage.record import Mark
from fencelock.transport.codec import encode

SKIPS = "repair"
"""The stream of the journal for what operators write; no role has that name."""


class RemovedVotes(NamedTuple):
    """The number of votes that were removed, and a copy of the folder as it was."""

    votes: int
    copy: Path


def remove_votes(
    config: Config, node: str, confirm: Callable[[Sequence[Impossible]], None]
) -> RemovedVotes | None:
    """Remove from the journal of ``node``, which is stopped, votes that no honest member can have.

    ``confirm`` is called with the votes before anything changes; it raises to leave them. Return
    None if there are none.
    """
    folder, rules = _folder_of(config, node, *JOURNAL_RULES), JOURNAL_RULES[config.protocol]
    with closing(Journal.open(folder)) as journal:
        records, _ = records_of(journal, config, node)
        stream = rules.stream
        votes = records.pop(stream, ())
        others = tuple(chain.from_iterable(records.values()))
        check_usable(rules, folder, node, [*others, *votes])
        date_ms = time.time_ns() // 1_000_000
        if config.protocol == "bakery" and (why := why_implausible([*others, *votes], date_ms)):
            raise JournalDamagedError(f"the journal in {folder} has {why}{unusable(node)}")
        wrong = rules.find_impossible([*others, *votes])
        if not wrong:
            return None
        confirm(wrong)
        copy = name_beside(folder, ".before-repair")
        shutil.copytree(folder, copy)
        kept = [(stream, encode(vote)) for vote in rules.without_impossible(votes, wrong)]
        # A crash leaves all of the stream's former records, or all of these.
        journal.write_all([(stream, Mark.BEGIN), *kept, (stream, Mark.END)])
    return RemovedVotes(len(wrong), copy)


def _folder_of(config: Config, node: str, *protocols: str) -> Path:
    folder = config.folder_of(node)
    if config.protocol not in protocols or folder is None or not folder.exists():
        text = " or ".join(protocols)
        raise ConfigError(f"{node} has no journal of {text} here that could be repaired")
    return folder


def skip_slot(config: Config, node: str, slot: int, operator: str) -> str:
    """Write into the journal of ``node`` that it skips what of ``slot`` damages the table.

    Return a line about it.
    """
    with closing(Journal.open(_folder_of(config, node, "paxos"))) as journal:
        records, _ = records_of(journal, config, node)
        known = recover([*chain.from_iterable(records.values())])
        first = known.next - len(known.decided)
        if slot < first:
            raise ConfigError(
                f"--skip: slot {slot} is part of the snapshot of {node}, which has all slots "
                f"before {first}: this member has passed it. Start it"
            )
        if slot in known.skips:
            return f"{node}: slot {slot} is skipped already; nothing was changed"
        journal.append([(SKIPS, encode(Skip(slot=slot, operator=operator)))])
        journal.sync()
    commands = _named_in(known.decided[slot - first].commands) if slot < known.next else ()
    return (
        f"{node}: slot {slot} is skipped, by {operator}. Its commands: "
        f"{', '.join(commands) or 'not known here yet'}. Run this for every member before "
        "you start any"
    )


def _named_in(commands: Sequence[bytes]) -> list[str]:
    read = [read_command(command) for command in commands]
    return [named(one) if isinstance(one, Command) else "no request of a client" for one in read]
