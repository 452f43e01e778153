"""The invariants of `paxos`: what no run may ever break, by names in words.

Classes that keep one say how in their docstrings, under this name; comments cite it where it is
asserted. The judges of ``verification/simulation/paxos_judge*.py`` check each from outside.
"""

from __future__ import annotations

from collections.abc import Mapping

INVARIANTS: Mapping[str, str] = {
    # What is decided.
    "one-batch-a-slot": "at most one batch is chosen for a slot",
    "chosen-was-proposed": "a chosen batch has only commands that were requested",
    "one-batch-a-ballot": "a ballot has one batch for a slot",
    "decisions-stay": "a decided batch was chosen, and never changes",
    "slots-in-order": "all members apply the same batches in order, without a gap",
    # Ballots and votes.
    "one-life-a-ballot": "a ballot is led by one life of one node",
    "promises-kept": "a promise is kept, over restarts too",
    "no-vote-below-promise": "an acceptor accepts nothing below its promise",
    "promises-report-votes": "a promise reports all votes",
    "highest-vote-proposed": "a leader proposes the vote of the highest ballot that it learned of",
    "distinct-majority": "promises and votes count for distinct members, and a majority counts",
    "durable-before-sent": "a node sends only what is on its disk",
    "lost-journals-do-not-vote": "a journal that was lost, or is an old copy, does not vote",
    # What the log serves.
    "one-outcome": "a request takes effect once, and has one outcome",
    "reads-are-fresh": "a read sees what was acknowledged before it, or is no older than it claims",
    "one-lease": "at most one node has the lease",
    "session-outlives-trust": "a session lives for as long as its client may trust it",
    "trimmed-is-durable": "what led to a state is dropped once a durable snapshot has that state",
    "all-served-in-the-end": "when faults have ended, all requests are answered and states equal",
    "only-diverged-quarantined": "a member is quarantined if its state differs, and then is silent",
    # Members.
    "one-change-at-a-time": "a change follows a decided slot of its leader, and no other change",
    "changes-stored": "a change is done once a majority's journals have every slot before it",
    "joiners-caught-up": "a node has caught up when it becomes a member",
    "only-members-vote": "a node votes only on the slots that its journal decides",
    "only-silent-replaced": "a leader by itself replaces silent members, while a majority answers",
}
