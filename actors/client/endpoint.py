"""The doors a client can knock at: which one is in use, which are silent, broken or wrong."""

from __future__ import annotations

from dataclasses import dataclass

from fencelock.actors.message import NS_PER_MS, Address, Instant, ms_between, node_of
from fencelock.actors.timing import TIMING

GATES_MAX = 64
"""More addresses than a cluster has nodes to wait at; each costs a link."""

SILENCE_MS = 3_000
"""A gate that owes an answer and says nothing for so long is left for another (ms)."""

PROBE_PAUSE_MS_MAX = 4_000
"""The longest pause between two rounds of probes while no gate serves (ms)."""

FALSE_ALARM_MS = 3_000
"""A gate that was left and is heard again so soon was only slow (ms)."""

FIRST_SILENCE_MS = 500
"""The same for a gate that was never heard, once another one was: nothing waits there yet."""


NEVER = Instant(0)

SILENCES_PER_TTL = 6
"""So many silent gates, one after the other, are left within the TTL of a session."""


@dataclass(slots=True)
class Endpoint:
    """One node's proxy, as far as this client knows it."""

    address: Address
    label: str
    """What the user calls it, for texts."""
    node: str = ""
    """The node behind it, once it has said so; links of a client have names of their own."""
    heard_at: Instant | None = None
    owing_since: Instant | None = None
    """When we first said something after we last heard it; None if it owes nothing."""
    down: bool = False
    """Its link broke, or it was silent for too long."""
    refused: str = ""
    """Why it is the wrong door: another cluster or version."""
    serving: bool = True
    """Whether it can have requests decided, as it last said when it was probed."""
    seen_at: Instant | None = None
    """When it last replied to a probe."""
    left_at: Instant | None = None
    """When it was left because it did not."""

    @property
    def usable(self) -> bool:
        """Whether nothing speaks against asking here."""
        return not self.down and not self.refused

    def seen_within(self, ms: int, now: Instant) -> bool:
        """Whether anything came from it in the last ``ms`` milliseconds."""
        seen = max(self.heard_at or NEVER, self.seen_at or NEVER)
        return seen > NEVER and ms_between(seen, now) < ms

    def heard(self, now: Instant) -> bool:
        """Note a sign of life; return whether the gate had been given up."""
        self.heard_at, self.owing_since = now, None
        if not self.down and not self.refused:
            return False
        self.down, self.refused = False, ""
        return True


@dataclass(slots=True)
class Probing:
    """The probes of the gate in use, and of the others if it does not reply."""

    gate: Address | None = None
    sent_at: Instant = NEVER
    """When the gate in use was first probed, of the probes without a sign of life since."""
    due_at: Instant | None = None
    """When all are probed next; None while there is no need to."""
    step_ms: int = 0
    patience_ms: int = TIMING.reply_ms
    """A gate that does not reply for so long is silent. Doubled by each false alarm."""
    number: int = 0

    def begin(self, gate: Address, now: Instant) -> None:
        """Expect ``gate`` to reply from now on."""
        self.gate, self.sent_at, self.step_ms = gate, now, self.patience_ms
        self.due_at = Instant(now + self.step_ms * NS_PER_MS)

    def again(self, now: Instant) -> None:
        """Note that all gates are probed now; the next time comes later each time."""
        self.due_at = Instant(now + self.step_ms * NS_PER_MS)
        self.step_ms = min(2 * self.step_ms, PROBE_PAUSE_MS_MAX)

    def end(self) -> None:
        """Expect nothing any more."""
        self.due_at = None

    def is_over(self, gate: Endpoint) -> bool:
        """Whether ``gate`` has shown since that it lives, and serves."""
        seen = max(gate.heard_at or NEVER, gate.seen_at or NEVER)
        return gate.serving and seen > self.sent_at

    def finds_silent(self, gate: Endpoint, now: Instant) -> bool:
        """Whether ``gate`` was probed and has shown no sign of life for too long."""
        seen = max(gate.heard_at or NEVER, gate.seen_at or NEVER)
        waits = self.due_at is not None and gate.address == self.gate and seen <= self.sent_at
        return waits and ms_between(self.sent_at, now) >= self.patience_ms

    def judge(self, gate: Endpoint, now: Instant) -> None:
        """Be more patient if ``gate``, which was left as silent, was only slow."""
        if gate.left_at is None:
            return
        soon = ms_between(gate.left_at, now) < FALSE_ALARM_MS
        self.patience_ms = min(2 * self.patience_ms, SILENCE_MS) if soon else TIMING.reply_ms
        gate.left_at = None


@dataclass(slots=True)
class Endpoints:
    """All gates of one client, in the order of the user's list, and the one in use.

    Sticky: ``current`` changes only when it becomes unusable and another is usable.
    """

    table: dict[Address, Endpoint]
    current: Address
    silence_ms: int = SILENCE_MS
    """As the constant, or less where a session does not live long enough for that."""
    master: str = ""
    """The node that answers soonest, as it was last told."""

    def choose(self) -> Endpoint:
        """Return the gate for a new request; the current one if none is usable."""
        gate = self.table[self.current]
        if not gate.down and not gate.refused:
            return gate
        following = self.after(self.current)
        if following is None:
            return gate
        self.current = following.address
        return following

    def after(self, address: Address) -> Endpoint | None:
        """Return the next usable gate after ``address``, round and round; None without one."""
        order = list(self.table)
        start = order.index(address) + 1
        for other in order[start:] + order[: start - 1]:
            if self.table[other].usable:
                return self.table[other]
        return None

    def of_node(self, node: str) -> Endpoint | None:
        """Return the gate on ``node``, if it is one of ours."""
        for gate in self.table.values():
            if node_of(gate.address) == node:
                return gate
        return None

    def live_by(self, ttl_ms: int) -> None:
        """Leave a silent gate soon enough for a session of that TTL to be kept at another."""
        self.silence_ms = min(SILENCE_MS, max(1, ttl_ms // SILENCES_PER_TTL))

    def of_master(self) -> Endpoint | None:
        """Return the gate on the master, if it is one of ours and nothing speaks against it."""
        for gate in self.table.values():
            if self.master and gate.node == self.master and gate.usable and gate.serving:
                return gate
        return None

    def any_usable(self) -> bool:
        """Whether at least one gate is worth asking."""
        return any(gate.usable for gate in self.table.values())

    def all_refused(self) -> bool:
        """Whether every gate belongs to another cluster or version."""
        if not self.table[self.current].refused:
            return False
        return all(gate.refused for gate in self.table.values())

    def linked(self, gate: Endpoint, now: Instant) -> None:
        """Note a new link: what counted against the gate belongs to the old one."""
        gate.down, gate.refused, gate.serving = False, "", True
        if gate.owing_since is not None:
            gate.owing_since = now

    def fall_silent(self, busy: list[Address], now: Instant) -> list[Address]:
        """Mark the gates of ``busy`` that have been silent for too long; return them."""
        fallen: list[Address] = []
        for address in busy:
            gate = self.table[address]
            if gate.owing_since is None or not gate.usable:
                continue
            if ms_between(gate.owing_since, now) >= self._patience_ms(gate):
                gate.down = True
                fallen.append(address)
        return fallen

    def describe(self, now: Instant) -> str:
        """Say of every gate, in words, how it is."""
        return ", ".join(_describe(gate, now) for gate in self.table.values())

    def _patience_ms(self, gate: Endpoint) -> int:
        others = any(other.usable and other.heard_at is not None for other in self.table.values())
        first = gate.heard_at is None and others
        return min(FIRST_SILENCE_MS, self.silence_ms) if first else self.silence_ms


def _describe(gate: Endpoint, now: Instant) -> str:
    if gate.refused:
        # A link says where its refusal came from, which is mostly how the gate is called.
        return f"{gate.label} ({gate.refused.removeprefix(f'{gate.label}: ')})"
    if gate.owing_since is None:
        return f"{gate.label} ({'link broken' if gate.down else 'answers'})"
    silent = f"silent for {ms_between(gate.owing_since, now) / 1000:.1f} s"
    if gate.heard_at is None:
        silent += ", never heard"
    return f"{gate.label} ({silent})"
