"""Members compare digests of their state at agreed slots, and a differing one leaves the group."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple

from msgspec.structs import replace

from fencelock.actors.api.name import is_allowed, utf8_size
from fencelock.actors.effect import Effect, Effects, Observe, Persist, Retire, Send, Spawn, Wake
from fencelock.actors.message import Address, Instant, node_of
from fencelock.actors.paxos.config import (
    LogBounds,
    LogConfig,
    acceptor_of,
    catchup_of,
    leader_of,
    members_of,
    monitor_of,
    replica_of,
)
from fencelock.actors.paxos.event import Compare, Divergence, Isolate, Withdraw
from fencelock.actors.paxos.machine import MASK, Fingerprint
from fencelock.actors.paxos.wire import (
    COUNTER_NAME_BYTES_MAX,
    DIGEST_COUNTERS_MAX,
    SCHEME,
    Diverged,
    TableDigest,
)
from fencelock.actors.role import Host, Role, Summary
from fencelock.actors.role_message import Level, notice

AGREED_SLOTS = 10_000
"""At each slot that is a multiple of this, every member sends its digest to all others."""

STEPS = 100
"""Number of parts into which the slots between two agreed ones are divided. A digest is kept at
the end of each part, so that members can also compare soon after a snapshot or a restart."""

OWN_DIGESTS_KEPT = 128
"""Own digests that are kept: they span slightly more than `AGREED_SLOTS`."""

AGREED_KEPT = 32
"""Own digests of agreed slots that are kept: several minutes under any load."""

RECEIVED_SLOTS_MAX = 32
"""Slots for which digests of each other member are kept. The digests of one push out no others."""

COMPARE_MS = 2_000
"""Timeout after which a member is asked for a digest that it has not sent (ms)."""

COMPARE_ATTEMPTS_MAX = 3
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
    """

    def __init__(
        self, digests: Digests, bounds: LogBounds, listener: Address, *, journal: bool
    ) -> None:
        self.digests = digests
        self.bounds = bounds
        self.listener = listener
        self.journal = journal
        """Whether this node keeps a journal."""
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

    def on_digest(
        self, sender: Address, digest: TableDigest, applied: int, now: Instant
    ) -> Effects:
        member = node_of(sender)
        if member not in self.digests.others or sender != replica_of(member):
            return (Observe("paxos.stranger_digests"),)
        what = "the digest of its state after all slots before"
        if refused := self.bounds.refuse_slot(sender, what, digest.slot, now):
            return refused
        if not self.digests.receive(member, digest, applied):
            return (Observe("paxos.digest_ignored"),)
        effects: list[Effect] = []
        own = self.digests.get(digest.slot)
        if own is not None and digest.asks and digest.slot not in self.digests.due:
            effects.append(Send(sender, own))
        effects += self.flush()
        return [*effects, *self._judge(digest.slot)]

    def on_compare(self, event: Compare) -> Effects:
        """Ask members whose digest is missing; after the last attempt, report if undecided."""
        found = self.digests.compare(event.slot)
        if found is None or self.why:
            return ()
        missing = self.digests.missing(event.slot)
        if missing and event.attempt <= COMPARE_ATTEMPTS_MAX:
            asking = replace(found.own, asks=True)
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
                return self._notify("")
            case Verdict.AGREED | Verdict.UNDECIDED:
                return []

    def _warn(self, slot: int, level: Level, text: str, mark: str, doubt: str) -> list[Effect]:
        if slot in self.doubted:
            return []
        self.doubted[slot] = None
        _forget_above(COMPARE_ATTEMPTS_MAX, self.doubted)
        return [notice(self.digests.node, level, text), *self._notify(doubt), Observe(mark)]

    def _notify(self, why: str) -> list[Effect]:
        if why == self.doubt:
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

    def isolate(self) -> list[Effect]:
        """Let a `Quarantined` take the place of the replica, and end the other roles of the log."""
        node = self.digests.node
        roles = (acceptor_of, leader_of, monitor_of, catchup_of, members_of, replica_of)
        arguments = {"why": self.why, "listener": self.listener}
        return [
            *(Retire(role(node)) for role in roles),
            Spawn(replica_of(node), Quarantined, arguments),
        ]


class Quarantined(Role[Isolate]):
    """Takes the place of a diverged member's replica. It only reports why.

    Args:
        why: the difference, in words.
        listener: the role of this node that is notified (`Divergence`).

    """

    def __init__(self, address: Address, host: Host, *, why: str, listener: Address) -> None:
        super().__init__(address, host)
        self.why = why
        self.listener = listener

    def begin(self, now: Instant) -> Effects:
        """Log the difference and the operator's instructions, and notify the listener."""
        text = f"{self.why}. {ADVICE}"
        report = Divergence(why=text, quarantined=True)
        return [
            notice(node_of(self.address), Level.CRITICAL, text),
            Send(self.listener, report),
            Observe("paxos.quarantined"),
        ]

    def handle(self, sender: Address, event: Isolate, now: Instant) -> Effects:
        return ()

    def summary(self) -> Summary:
        return (("why", self.why),)


class Verdict(Enum):
    """Result of comparing the digests of one slot."""

    AGREED = "agreed"
    """No received digest differs."""
    OTHERS_DIFFER = "others differ"
    """This node belongs to a majority that agrees."""
    UNDECIDED = "undecided"
    """Digests differ, and no majority agrees (yet)."""
    DIVERGED = "diverged"
    """A majority agrees on a state that differs from this node's."""


class Comparison(NamedTuple):
    """The verdict about a slot, with the members that differ from this node."""

    verdict: Verdict
    own: TableDigest
    differing: tuple[tuple[str, TableDigest], ...]


class Digests:
    """Digests that this member and others have sent, by slot.

    A digest has two parts. ``state`` depends on the state alone, so a member that restored a
    snapshot has the same. ``decided`` depends on everything decided since the last agreed slot:
    it reveals members whose states differed for a while and are equal again.

    Args:
        config: the views. The members of the newest compare their states.
        every: see `AGREED_SLOTS`.

    """

    def __init__(self, node: str, config: LogConfig, every: int = AGREED_SLOTS) -> None:
        self.node = node
        self.config = config
        self.every = every
        self.step = max(1, every // STEPS)
        self.own: dict[int, TableDigest] = {}
        self.agreed: dict[int, TableDigest] = {}
        """Digests of agreed slots, which are kept for longer."""
        self.received: dict[int, dict[str, TableDigest]] = {}
        self.sent: dict[int, None] = {}
        """Slots whose digest this member has sent, or is about to send."""
        self.due: list[int] = []
        """Slots whose digest must be sent now."""
        self.wanted = False
        """Whether the next digest is sent, of whatever slot."""
        self._since: int | None = None
        """`Fingerprint.decided` at the last agreed slot, or None if that slot was not applied."""

    @property
    def others(self) -> tuple[str, ...]:
        """The other members of the newest view."""
        return tuple(member for member in self.config.newest.members if member != self.node)

    def begin(self, fingerprint: Fingerprint | None) -> None:
        """Begin with an empty state (its fingerprint), or with a snapshot (None)."""
        self._since = None if fingerprint is None else fingerprint.decided
        self.own.clear()
        self.agreed.clear()
        self.wanted = True

    def note(self, slot: int, fingerprint: Fingerprint) -> None:
        """Store the digest of the state after all slots before ``slot``, a multiple of ``step``."""
        since = self._since
        self.own[slot] = digest = TableDigest(
            scheme=SCHEME,
            slot=slot,
            state=fingerprint.state & MASK,
            decided=None if since is None else (fingerprint.decided - since) & MASK,
            counters=fingerprint.counters,
            asks=False,
        )
        _forget_above(OWN_DIGESTS_KEPT, self.own)
        agreed = slot % self.every == 0
        if agreed:
            self._since = fingerprint.decided
            self.agreed[slot] = digest
            _forget_above(AGREED_KEPT, self.agreed)
        if agreed or self.wanted or slot in self.received:
            self.send(slot)

    def send(self, slot: int) -> None:
        """Mark the digest of ``slot`` to be sent, once."""
        self.wanted = False
        if slot not in self.sent:
            self.sent[slot] = None
            self.due.append(slot)
            _forget_above(OWN_DIGESTS_KEPT, self.sent)

    def get(self, slot: int) -> TableDigest | None:
        """Return this member's own digest of ``slot``, if it is kept."""
        return self.own.get(slot) or self.agreed.get(slot)

    def recovered(self) -> None:
        """After recovery, send only the last of the digests."""
        self.due, self.sent = [], {}
        if self.own:
            self.send(next(reversed(self.own)))

    def receive(self, member: str, digest: TableDigest, applied: int) -> bool:
        """Store the digest of ``member``; return False if it is unusable."""
        slot = digest.slot
        if not self._is_sound(digest) or (slot < applied and self.get(slot) is None):
            return False
        of_member = [at for at, digests in self.received.items() if member in digests]
        if slot not in of_member and len(of_member) >= RECEIVED_SLOTS_MAX:
            self._forget(member, of_member[0])
        self.received.setdefault(slot, {})[member] = digest
        if self.get(slot) is not None:
            self.send(slot)
        return True

    def _forget(self, member: str, slot: int) -> None:
        """Drop a digest of ``member``. It makes room for others of that member alone."""
        digests = self.received[slot]
        del digests[member]
        if not digests:
            del self.received[slot]

    def compare(self, slot: int) -> Comparison | None:
        """Compare the known digests of ``slot``; return None if this member's own is not known."""
        own, received = self.get(slot), self.received.get(slot, {})
        if own is None:
            return None
        differing = tuple(
            (member, digest) for member, digest in received.items() if _differ(own, digest)
        )
        if not differing:
            return Comparison(Verdict.AGREED, own, ())
        agree = len(received) - len(differing) + 1
        against = max(_most(d.state for _, d in differing if d.state != own.state), 0)
        if own.decided is not None:
            decided = (d.decided for _, d in differing if d.decided != own.decided)
            against = max(against, _most(one for one in decided if one is not None))
        verdict = Verdict.UNDECIDED
        majority = self.config.newest.majority
        if against >= majority:
            verdict = Verdict.DIVERGED
        elif agree >= majority:
            verdict = Verdict.OTHERS_DIFFER
        return Comparison(verdict, own, differing)

    def missing(self, slot: int) -> tuple[str, ...]:
        received = self.received.get(slot, {})
        return tuple(member for member in self.others if member not in received)

    def _is_sound(self, digest: TableDigest) -> bool:
        return (
            digest.scheme == SCHEME
            and digest.slot % self.step == 0
            and len(digest.counters) <= DIGEST_COUNTERS_MAX
            and all(_is_short(one.name) for one in digest.counters)
        )


def _is_short(name: str) -> bool:
    """Return whether a counter's name is fit for a log."""
    return utf8_size(name) <= COUNTER_NAME_BYTES_MAX and is_allowed(name)


def _differ(one: TableDigest, other: TableDigest) -> bool:
    known = one.decided is not None and other.decided is not None
    return one.state != other.state or (known and one.decided != other.decided)


def _forget_above(most: int, kept: dict[int, Any]) -> None:
    if len(kept) > most:
        del kept[next(iter(kept))]


def _most(values: Iterable[int]) -> int:
    count: dict[int, int] = {}
    for value in values:
        count[value] = count.get(value, 0) + 1
    return max(count.values(), default=0)


def in_words(comparison: Comparison) -> str:
    """Describe the difference at a slot, with the counters of both sides, for a log."""
    others = "; ".join(f"{member} has {_shown(digest)}" for member, digest in comparison.differing)
    return f"before slot {comparison.own.slot} this node has {_shown(comparison.own)}; {others}"


def _shown(digest: TableDigest) -> str:
    decided = "-" if digest.decided is None else f"{digest.decided:016x}"
    counters = ", ".join(f"{one.name} {one.value}" for one in digest.counters)
    return f"digest {digest.state:016x}/{decided} ({counters})"
