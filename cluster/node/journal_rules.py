"""The rules of each protocol whose members vote: records that no journal can have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fencelock.actors.bakery import journal as bakery
from fencelock.actors.bakery.config import election_of
from fencelock.actors.message import Message, role_of
from fencelock.actors.paxos import journal as paxos
from fencelock.actors.paxos.config import acceptor_of
from fencelock.cluster.node.storage.directory import JournalDamagedError

Impossible = paxos.ImpossibleVote | bakery.ImpossibleRecord
"""A record that no honest member can have, and why."""


class JournalRules(NamedTuple):
    """The rules of one protocol."""

    stream: str
    """The stream with the records that can be mended."""
    find_impossible: Callable[[Sequence[Message]], Sequence[Impossible]]
    """Returns the records that can be mended."""
    without_impossible: Callable[[Sequence[Message], Sequence[Any]], list[Message]]
    """Returns the records of the stream without those."""
    why_unusable: Callable[[Sequence[Message]], str]
    """Returns what cannot be mended, empty if there is nothing."""


JOURNAL_RULES = {
    "paxos": JournalRules(
        role_of(acceptor_of("n1")), paxos.find_impossible, paxos.without_votes, paxos.why_unusable
    ),
    "bakery": JournalRules(
        role_of(election_of("n1")),
        bakery.find_impossible,
        bakery.without_impossible,
        bakery.why_unusable,
    ),
}


def check_possible(protocol: str, folder: Path, node: str, records: Sequence[Message]) -> None:
    """Check that the journal of ``node`` has only what an honest member can have."""
    rules = JOURNAL_RULES.get(protocol)
    if rules is None:
        return
    check_usable(rules, folder, node, records)
    if wrong := rules.find_impossible(records):
        raise JournalDamagedError(
            f"the journal in {folder} has {len(wrong)} votes that no honest member can "
            f"have, such as {wrong[0].why}. Run fencelock repair --id {node}, which "
            "explains and removes them"
        )


def check_usable(rules: JournalRules, folder: Path, node: str, records: Sequence[Message]) -> None:
    """Return unless the journal of ``node`` has what cannot be mended: it must be replaced."""
    if why := rules.why_unusable(records):
        raise JournalDamagedError(f"the journal in {folder} has {why}{unusable(node)}")


def unusable(node: str) -> str:
    """Return the end of the sentence about a journal that must be replaced."""
    return (
        ", which no honest member can have. A broken or forged member sent it, or the disk was "
        f"altered. It cannot be mended: move the folder away, start {node} with an empty one, "
        f"then run: fencelock replace {node}"
    )
