"""The owner of a journal: written as the first record, and compared at every start.

A node that uses another node's journal, or votes among other members than those it made
promises to, can break safety unnoticed. One wrong path in a configuration is enough for
that, so it is refused.

The id of a journal is drawn when it is made. A group registers the ids of its members'
journals when it is bootstrapped, so that an empty journal is never taken for a lost one
(``actors/bootstrap.py``).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence

from fencelock.cluster.storage.error import JournalForeignError
from fencelock.cluster.storage.journal import Journal
from fencelock.cluster.storage.record import Entry

STREAM = "identity"
"""The stream of the one record; no role has that name."""

JOURNAL = "journal"
"""The key of the journal's id in that record."""


def claim(
    journal: Journal, found: Mapping[str, Sequence[bytes]], identity: Mapping[str, str]
) -> int:
    """Return the id of ``journal`` if ``identity`` owns it; a new journal becomes its own.

    Args:
        journal: open, with nothing appended yet.
        found: its records when it was opened, by stream.
        identity: what must be the same in every life (cluster, node, members), in words.

    Raises:
        JournalForeignError: it is another's; the text names the owner. Nothing was changed.
        JournalFailedError: the disk refuses.

    """
    if not found:
        journal_id = 1 + secrets.randbits(62)
        record = {**identity, JOURNAL: f"{journal_id:x}"}
        journal.append([Entry(STREAM, json.dumps(record, sort_keys=True).encode())])
        journal.sync()
        return journal_id
    records = found.get(STREAM, ())
    known: dict[str, str] = json.loads(records[0]) if records else {}
    wrong = [
        f"{what} {known.get(what, 'unknown')!r} and not {mine!r}"
        for what, mine in identity.items()
        if known.get(what) != mine
    ]
    if wrong:
        raise JournalForeignError(
            f"{journal.folder} is the journal of {', '.join(wrong)}. Give this node the folder "
            "that is its own. If that folder is lost, an empty one is safe: the node will serve "
            "and not vote, as long as the cluster knows the journal that was lost"
        )
    return int(known[JOURNAL], 16)
