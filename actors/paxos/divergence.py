"""Compares this member's state with the others', and leaves the group if it differs. Pure."""

from __future__ import annotations

from fencelock.actors.effect import Effect, Effects, Observe, Persist, Retire, Send, Spawn, Wake
from fencelock.actors.message import Address, Instant, address_of, node_of
from fencelock.actors.notice import Level, Notice
from fencelock.actors.paxos.config import (
    acceptor_of,
    catchup_of,
    leader_of,
    monitor_of,
    replica_of,
)
from fencelock.actors.paxos.digest import Comparison, Digests, Verdict, in_words
from fencelock.actors.paxos.digest_message import (
    Compare,
    Diverged,
    Divergence,
    Isolate,
    TableDigest,
)
from fencelock.actors.paxos.event import Withdraw
from fencelock.actors.role import Host, Role, Summary

COMPARE_MS = 2_000
"""Timeout after which a member that has not sent its digest is asked for it (ms)."""

ATTEMPTS_MAX = 3
"""Maximum number of such requests; after them the next agreed slot must do."""

ADVICE = (
    "This node neither votes nor serves any more, and will not after a restart. Stop it, keep its "
    "data folder for a bug report, see that all members run the same version, then start it with "
    "an empty folder: it will learn the table anew and serve, but not vote"
)
"""Instructions for the operator of a diverged member."""

DOUBTED = (
    "No majority agrees, so nothing is stopped: compare versions, let all members run, and if it "
    "lasts stop the cluster and ask which of them is right"
)
"""Instructions for the operator if no majority agrees."""


class DivergenceWatch:
    """Sends the digests of a replica, compares them, and acts on a difference.

    A member that differs from a majority records that in its journal, steps down and ends all its
    roles of the log. A `Quarantined` then takes the replica's place. If members differ and no
    majority agrees, all of them continue: no node can know which is right, and stopping all of
    them would not be safer than the operator's decision.

    Args:
        digests: the digests sent and received.
        listener: a role of this node that is notified (`Divergence`), or None.
        journal: whether this node keeps a journal.

    """

    def __init__(self, digests: Digests, listener: Address | None, *, journal: bool) -> None:
        self.digests = digests
        self.listener = listener
        self.journal = journal
        self.doubted: dict[int, None] = {}
        """Slots whose difference was logged."""
        self.doubt = ""
        """The last text sent to the listener."""
        self.why = ""
        """Reason why this node leaves the group, empty if it does not."""

    def flush(self) -> list[Effect]:
        """Send the digests that are due, and compare them with those received."""
        due, self.digests.due = self.digests.due, []
        effects: list[Effect] = []
        for slot in due:
            own = self.digests.get(slot)
            if own is None:
                continue
            effects += [Send(replica_of(other), own) for other in self.digests.others]
            effects += self._judge(slot)
            if self.digests.others:
                effects.append(Wake(COMPARE_MS, Compare(slot=slot, attempt=1)))
        return effects

    def handle(
        self, sender: Address, event: TableDigest | Compare | Isolate, applied: int
    ) -> Effects:
        """Handle a digest, ask again for missing ones, or end."""
        match event:
            case TableDigest():
                return self._on_digest(sender, event, applied)
            case Compare():
                return self._on_compare(event)
            case Isolate():
                return self._isolate()

    def _on_digest(self, sender: Address, digest: TableDigest, applied: int) -> Effects:
        member = node_of(sender)
        if member not in self.digests.others or sender != replica_of(member):
            return (Observe("paxos.stranger_digests"),)
        if not self.digests.hear(member, digest, applied):
            return (Observe("paxos.digest_ignored"),)
        effects: list[Effect] = []
        own = self.digests.get(digest.slot)
        if own is not None and digest.asks and digest.slot not in self.digests.due:
            effects.append(Send(sender, own))
        effects += self.flush()
        return [*effects, *self._judge(digest.slot)]

    def _on_compare(self, event: Compare) -> Effects:
        """Ask members whose digest is missing; after the last attempt, report if undecided."""
        found = self.digests.compare(event.slot)
        if found is None or self.why:
            return ()
        missing = self.digests.missing(event.slot)
        if missing and event.attempt <= ATTEMPTS_MAX:
            asking = _asking(found.own)
            again = Compare(slot=event.slot, attempt=event.attempt + 1)
            return [
                *(Send(replica_of(member), asking) for member in missing),
                Wake(COMPARE_MS, again),
            ]
        if found.verdict is Verdict.UNDECIDED:
            text = f"the tables of members differ: {in_words(found)}. {DOUBTED}"
            return self._warn(event.slot, Level.ERROR, text, "paxos.divergence_undecided", text)
        return ()

    def _judge(self, slot: int) -> list[Effect]:
        found = self.digests.compare(slot)
        if found is None or self.why:
            return []
        match found.verdict:
            case Verdict.DIVERGED:
                return self._quarantine(found)
            case Verdict.OTHERS_DIFFER:
                text = f"the table of another member differs from a majority's: {in_words(found)}"
                return self._warn(slot, Level.WARNING, text, "paxos.other_diverged", "")
            case Verdict.AGREED if self.doubt and not self.digests.missing(slot):
                return self._tell("")
            case Verdict.AGREED | Verdict.UNDECIDED:
                return []

    def _warn(self, slot: int, level: Level, text: str, mark: str, doubt: str) -> list[Effect]:
        if slot in self.doubted:
            return []
        self.doubted[slot] = None
        if len(self.doubted) > ATTEMPTS_MAX:
            del self.doubted[next(iter(self.doubted))]
        told = self._tell(doubt)
        return [
            Send(host_of(self.digests.node), Notice(level=level, text=text)),
            *told,
            Observe(mark),
        ]

    def _tell(self, why: str) -> list[Effect]:
        if why == self.doubt or self.listener is None:
            return []
        self.doubt = why
        return [Send(self.listener, Divergence(why=why, quarantined=False))]

    def _quarantine(self, found: Comparison) -> list[Effect]:
        """Record that this journal is invalid, step down, then end (`Isolate`)."""
        self.why = f"its table differs from a majority's: {in_words(found)}"
        record = Diverged(slot=found.own.slot, why=self.why)
        return [
            *([Persist(record)] if self.journal else []),
            Send(leader_of(self.digests.node), Withdraw()),
            Wake(0, Isolate()),
            Observe("paxos.diverged"),
        ]

    def _isolate(self) -> list[Effect]:
        node = self.digests.node
        roles = (acceptor_of, leader_of, monitor_of, catchup_of, replica_of)
        arguments = {"why": self.why, "listener": self.listener}
        return [
            *(Retire(role(node)) for role in roles),
            Spawn(replica_of(node), Quarantined, arguments),
        ]


class Quarantined(Role[Isolate]):
    """Takes the place of a diverged member's replica. It only reports why.

    Args:
        why: the difference, in words.
        listener: a role of this node that is notified (`Divergence`), or None.

    """

    def __init__(self, address: Address, host: Host, *, why: str, listener: Address | None) -> None:
        super().__init__(address, host)
        self.why = why
        self.listener = listener

    def begin(self, now: Instant) -> Effects:
        """Log the difference and the operator's instructions, and notify the listener."""
        text = f"{self.why}. {ADVICE}"
        told = Divergence(why=text, quarantined=True)
        return [
            Send(host_of(node_of(self.address)), Notice(level=Level.CRITICAL, text=text)),
            *([] if self.listener is None else [Send(self.listener, told)]),
            Observe("paxos.quarantined"),
        ]

    def handle(self, sender: Address, event: Isolate, now: Instant) -> Effects:
        """Do nothing."""
        return ()

    def summary(self) -> Summary:
        """Return why the member is quarantined."""
        return (("why", self.why),)


def host_of(node: str) -> Address:
    """Return the address at which the host of ``node`` receives notices."""
    return address_of(node, "node")


def _asking(own: TableDigest) -> TableDigest:
    return TableDigest(
        scheme=own.scheme,
        slot=own.slot,
        state=own.state,
        decided=own.decided,
        counters=own.counters,
        asks=True,
    )
