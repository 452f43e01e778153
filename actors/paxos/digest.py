"""Digests of a replica's state at agreed slots, compared with those of other members. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from fencelock.actors.api.name import is_allowed, utf8_size
from fencelock.actors.paxos.digest_message import (
    COUNTER_NAME_BYTES_MAX,
    COUNTERS_MAX,
    SCHEME,
    Figure,
    TableDigest,
)
from fencelock.actors.paxos.message import NUMBER_MAX

AGREED_SLOTS = 10_000
"""At each slot that is a multiple of this, every member sends its digest to all others."""

STEPS = 100
"""Number of parts into which the slots between two agreed ones are divided. A digest is kept at
the end of each part, so that members can also compare soon after a snapshot or a restart."""

KEPT = 128
"""Own digests that are kept: they span slightly more than `AGREED_SLOTS`."""

AGREED_KEPT = 32
"""Own digests of agreed slots that are kept: several minutes under any load."""

HEARD_SLOTS_MAX = 32
"""Slots for which digests of other members are kept."""

MASK = (1 << 63) - 1
"""Digests are non-negative integers on the wire."""


class Fingerprint(NamedTuple):
    """A state machine's summary of its state; see `Machine.fingerprint`."""

    state: int
    decided: int
    counters: tuple[Figure, ...]


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


def state_of(numbers: Iterable[int]) -> int:
    """Return a digest of ``numbers``, for `Fingerprint.state`."""
    spelled = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(spelled, digest_size=8).digest()) & MASK


class Digests:
    """Digests that this member and others have sent, by slot.

    A digest has two parts. ``state`` depends on the state alone, so a member that restored a
    snapshot has the same. ``decided`` depends on everything decided since the last agreed slot:
    it reveals members whose states differed for a while and are equal again.

    Args:
        members: all members, sorted.
        every: see `AGREED_SLOTS`.

    """

    def __init__(self, node: str, members: Sequence[str], every: int = AGREED_SLOTS) -> None:
        self.node = node
        self.others = tuple(member for member in members if member != node)
        self.majority = len(members) // 2 + 1
        self.every = every
        self.step = max(1, every // STEPS)
        self.own: dict[int, TableDigest] = {}
        self.agreed: dict[int, TableDigest] = {}
        """Digests of agreed slots, which are kept for longer."""
        self.heard: dict[int, dict[str, TableDigest]] = {}
        self.sent: dict[int, None] = {}
        """Slots whose digest this member has sent, or is about to send."""
        self.due: list[int] = []
        """Slots whose digest must be sent now."""
        self.wanted = False
        """Whether the next digest is sent, whatever its slot."""
        self._since: int | None = None
        """`Fingerprint.decided` at the last agreed slot; None if that slot was not applied."""

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
        _forget_above(KEPT, self.own)
        agreed = slot % self.every == 0
        if agreed:
            self._since = fingerprint.decided
            self.agreed[slot] = digest
            _forget_above(AGREED_KEPT, self.agreed)
        if agreed or self.wanted or slot in self.heard:
            self.send(slot)

    def send(self, slot: int) -> None:
        """Mark the digest of ``slot`` to be sent, once."""
        self.wanted = False
        if slot not in self.sent:
            self.sent[slot] = None
            self.due.append(slot)
            _forget_above(KEPT, self.sent)

    def get(self, slot: int) -> TableDigest | None:
        """Return this member's own digest of ``slot``, if it is kept."""
        return self.own.get(slot) or self.agreed.get(slot)

    def want(self) -> None:
        """Have the state compared soon: at the next multiple of ``step``."""
        self.wanted = True

    def recovered(self) -> None:
        """After recovery, send only the last of the digests."""
        self.due, self.sent = [], {}
        if self.own:
            self.send(next(reversed(self.own)))

    def hear(self, member: str, digest: TableDigest, applied: int) -> bool:
        """Store the digest of ``member``; return False if it is unusable.

        Args:
            member: another member.
            digest: the digest it sent.
            applied: the first slot not yet applied here.

        """
        slot = digest.slot
        if not self._is_sound(digest) or (slot < applied and self.get(slot) is None):
            return False
        self.heard.setdefault(slot, {})[member] = digest
        _forget_above(HEARD_SLOTS_MAX, self.heard)
        if self.get(slot) is not None:
            self.send(slot)
        return True

    def compare(self, slot: int) -> Comparison | None:
        """Compare the known digests of ``slot``; None if this member's own is not known."""
        own, heard = self.get(slot), self.heard.get(slot, {})
        if own is None:
            return None
        differing = tuple(
            (member, digest) for member, digest in heard.items() if _differ(own, digest)
        )
        if not differing:
            return Comparison(Verdict.AGREED, own, ())
        agree = len(heard) - len(differing) + 1
        against = max(_most(d.state for _, d in differing if d.state != own.state), 0)
        if own.decided is not None:
            decided = (d.decided for _, d in differing if d.decided != own.decided)
            against = max(against, _most(one for one in decided if one is not None))
        verdict = Verdict.UNDECIDED
        if against >= self.majority:
            verdict = Verdict.DIVERGED
        elif agree >= self.majority:
            verdict = Verdict.OTHERS_DIFFER
        return Comparison(verdict, own, differing)

    def missing(self, slot: int) -> tuple[str, ...]:
        """Return the members that have not sent their digest of ``slot``."""
        heard = self.heard.get(slot, {})
        return tuple(member for member in self.others if member not in heard)

    def _is_sound(self, digest: TableDigest) -> bool:
        return (
            digest.scheme == SCHEME
            and 1 <= digest.slot < NUMBER_MAX
            and digest.slot % self.step == 0
            and len(digest.counters) <= COUNTERS_MAX
            and all(_is_short(one.name) for one in digest.counters)
        )


def _is_short(name: str) -> bool:
    """Return whether a counter's name is fit for a log."""
    return utf8_size(name) <= COUNTER_NAME_BYTES_MAX and is_allowed(name)


def _differ(one: TableDigest, other: TableDigest) -> bool:
    """Return whether two digests of one slot show different states."""
    known = one.decided is not None and other.decided is not None
    return one.state != other.state or (known and one.decided != other.decided)


def _forget_above(most: int, kept: dict[int, Any]) -> None:
    """Drop the oldest entry if there are more than ``most``."""
    if len(kept) > most:
        del kept[next(iter(kept))]


def _most(values: Iterable[int]) -> int:
    """Return how often the most frequent of ``values`` occurs."""
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
