"""The endpoints of a client: the state of each, and the choice of the one in use.

Each endpoint is in one `EndpointState`, and moves only along `MOVES`. Requests go to a usable one.
These four states are usable (UNTRIED to DOUBTED and back is not drawn):

    UNTRIED ── it sends something ──> LIVE ── a request is late: it is probed ──> DOUBTED
                                      ^  ^                                           │
      it replies to a probe that      │  └── it sends something, or nothing waits ───┘
      it serves, or is named leader   │
                                    UNABLE <── it replies that it cannot serve, from all three

From each of them it may become unusable. Its next message, or a new link, makes it usable again:

    SILENT     it owed a sign of life or a reply for too long, see below
    BROKEN     its link broke, or is not up yet
    REFUSED    it does not accept this client

An endpoint owes a *sign of life* while it is DOUBTED, or UNTRIED and asked for anything: any
message will do. It owes a *reply* from the first request or keep-alive that can be answered at
once, until it sends anything but a reply to a probe: a node may reply to probes and still get
nothing decided. So there are two ways to SILENT:

- it owed a sign of life for `patience_ms`, and another endpoint sent one: the other is used;
- it owed a reply for `silence_ms`: the next endpoint is used, whatever is known of it.

A client with a session uses the endpoint of the leader, which saves a hop, as soon as it knows
who leads and that endpoint is usable (`prefer_leader`).

A client probes and doubts only while the cluster keeps its session: then its requests keep their
places in queues at another endpoint. Without such a session, a request that moves loses its place,
so only `silence_ms` counts once an endpoint has sent anything.

While the endpoint in use is DOUBTED or UNABLE and requests wait, all usable ones are probed, after
growing pauses. The first that replies replaces a DOUBTED one, the first that serves an UNABLE one.
A message that comes soon after its endpoint was left in doubt shows a false alarm, and doubles the
patience, up to `ENDPOINT_SILENCE_MS`. One that comes later resets it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

from fencelock.actors.api.cluster_message import Probe, ProbeReply
from fencelock.actors.api.membership_message import NODE_ID, is_endpoint
from fencelock.actors.api.session_message import NodeAddress
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant, address_of, later, ms_between, node_of
from fencelock.actors.session.lease import hasten
from fencelock.actors.timing import REPLY_MS, TIMING

if TYPE_CHECKING:
    from fencelock.actors.session.state import SessionState

ENDPOINTS_MAX = 64
"""Maximum number of addresses: more than a cluster has nodes, and each costs a link."""

ENDPOINT_SILENCE_MS = 3_000
"""An endpoint that owes a reply for this long is left for another (ms)."""

PROBE_PAUSE_MS_MAX = 4_000
"""Longest pause between two rounds of probes while no endpoint serves (ms)."""

FALSE_ALARM_MS = 3_000
"""An endpoint that sends something this soon after it was left was only slow (ms)."""

EXCUSE_MS = 2_000
"""Time for which a proxy's reason for not replying counts (ms). It repeats one that lasts.

Twice the interval of keep-alives to a node without a session: `SESSIONLESS_KEEP_MS` in `upkeep.py`.
"""

NEVER = Instant(0)

SILENCES_PER_TTL = 6
"""Number of silent endpoints that can be left, one after another, within a session's TTL."""


class EndpointState(Enum):
    """What a client knows of an endpoint."""

    UNTRIED = "untried"
    """It has sent nothing yet."""
    LIVE = "live"
    DOUBTED = "doubted"
    """A request to it is late, so it was probed, and has sent nothing since."""
    UNABLE = "unable"
    """It lives, but can get no request decided, according to its last reply to a probe."""
    SILENT = "silent"
    BROKEN = "broken"
    REFUSED = "refused"
    """It is the wrong endpoint: another cluster or version, or a key."""


UNTRIED, LIVE, DOUBTED, UNABLE, SILENT, BROKEN, REFUSED = EndpointState

MOVES: dict[EndpointState, tuple[EndpointState, ...]] = {
    UNTRIED: (LIVE, DOUBTED, UNABLE, SILENT, BROKEN, REFUSED),
    LIVE: (DOUBTED, UNABLE, SILENT, BROKEN, REFUSED),
    DOUBTED: (UNTRIED, LIVE, UNABLE, SILENT, BROKEN, REFUSED),
    UNABLE: (LIVE, SILENT, BROKEN, REFUSED),
    SILENT: (UNTRIED, LIVE, BROKEN, REFUSED),
    BROKEN: (UNTRIED, LIVE, REFUSED),
    REFUSED: (UNTRIED, LIVE),
}
"""The moves of an endpoint. A link that breaks after a refusal was refused."""

USABLE = (LIVE, UNTRIED, DOUBTED, UNABLE)


@dataclass(slots=True)
class Endpoint:
    """One node's proxy, as far as this client knows it."""

    address: Address
    label: str
    """Its name for users, in texts."""
    node: str = ""
    """The node behind it, once known; a client's links have names of their own."""
    state: EndpointState = UNTRIED
    since: Instant = NEVER
    """The time at which it entered its state."""
    received_at: Instant | None = None
    """The time of its last message, None before the first."""
    owing_since: Instant | None = None
    """The time since which it owes a reply, or None if it owes none."""
    left_in_doubt: bool = False
    """Whether it is SILENT since it sent no sign of life in time, rather than no reply."""
    refused: str = ""
    """The reason why it is REFUSED."""
    by_key: bool = False
    """Whether that reason is about keys."""
    excuse: str = ""
    """The last reason it gave for not replying to requests."""
    excused_at: Instant = NEVER
    learned: bool = False
    """Whether the cluster named it, and not the user."""
    left: bool = False
    """Whether the cluster does not name it any more: it is dropped as soon as nothing needs it."""

    def enter(self, to: EndpointState, now: Instant) -> None:
        """Move to the state ``to``, unless it is in that already."""
        if to is self.state:
            return
        if to not in MOVES[self.state]:
            raise AssertionError(f"an endpoint that is {self.state.value} cannot be {to.value}")
        self.state, self.since = to, now

    def trust(self, now: Instant) -> None:
        """Expect it to reply: it has a new link, or nothing more is known of it than before."""
        self.enter(UNTRIED if self.received_at is None else LIVE, now)

    def excuse_at(self, now: Instant) -> str:
        """Return the reason that it gave for not replying to requests, if that still counts."""
        return self.excuse if ms_between(self.excused_at, now) < EXCUSE_MS else ""

    @property
    def usable(self) -> bool:
        return self.state in USABLE

    @property
    def foreign(self) -> bool:
        """Whether it never was a node of ours."""
        return self.state is REFUSED and self.received_at is None

    def named(self) -> str:
        """Return its label, with the reason if it refuses this client's frames."""
        if self.state is not REFUSED:
            return self.label
        # A link's refusal begins with its source, which usually is the label.
        return f"{self.label} ({self.refused.removeprefix(f'{self.label}: ')})"

    def received_within(self, ms: int, now: Instant) -> bool:
        return self.received_at is not None and ms_between(self.received_at, now) < ms


class Endpoints(Struct):
    """All endpoints of one client, in the order of the user's list, and the one in use.

    ``current`` changes only if it becomes unusable, if it is UNABLE while another is not, or if the
    endpoint of the leader is usable (`prefer_leader`). So it is usable if any endpoint is: what
    makes it unusable also leaves it, and the first one that comes back is used (`come_back`).
    """

    table: dict[Address, Endpoint]
    current: Address
    silence_ms: int = ENDPOINT_SILENCE_MS
    """As the constant, or less where a session's TTL is too short for that."""
    patience_ms: int = REPLY_MS
    """Time for which a sign of life may be owed (ms). Doubled by each false alarm."""
    probe_at: Instant | None = None
    """The time at which all are probed next; None while there is no need."""
    pause_ms: int = 0
    probes: int = 0
    """Number of the last probe."""
    leader: str = ""
    """The node that replies soonest, according to the last message about it."""
    view: int = -1
    """Number of the membership that was learned last, -1 before the first."""
    members: tuple[NodeAddress, ...] = ()
    """Its members, until it is known which of them the user's endpoints reach."""
    stays: bool = False
    """Whether only the user's endpoints are used, and the one in use for as long as it works."""
    advice: str = ""
    """Advice that error texts give while no endpoint has ever answered, not even to refuse."""

    def learn(self, view: int, members: tuple[NodeAddress, ...]) -> list[NodeAddress]:
        """Take over the members of a newer view; return those to connect to.

        Their links are named after the nodes, and come up later. The user's endpoints stay: they
        may lead through relays of which the cluster does not know.
        """
        if self.stays:
            return []
        if members and view > self.view:
            self.view, self.members = view, members
            names = {member.node for member in members}
            for endpoint in self.table.values():
                endpoint.left = endpoint.learned and endpoint.node not in names
        endpoints = self.table.values()
        if not self.members or any(one.usable and not one.node for one in endpoints):
            return []
        new = [member for member in self.members if self._is_new(member)]
        self.members = ()
        return new

    def _is_new(self, member: NodeAddress) -> bool:
        """Add ``member`` unless it has an endpoint; return whether to connect to it."""
        name, label = member
        address = address_of(name, "proxy")
        known = self.table.get(address)
        if known is None:
            others = self.table.values()
            reached = (one.label == label or (one.node == name and one.usable) for one in others)
            sound = NODE_ID.fullmatch(name) is not None and is_endpoint(label)
            if not sound or len(self.table) >= ENDPOINTS_MAX or any(reached):
                return False
        elif not known.learned or known.label == label:
            return False
        self.table[address] = Endpoint(address, label, node=name, state=BROKEN, learned=True)
        return True

    def choose(self) -> Endpoint:
        """Return the endpoint for a new request: the one in use."""
        return self.table[self.current]

    def use(self, address: Address, now: Instant) -> None:
        """Send requests to ``address`` from now on. No doubt of the former one is pursued."""
        self.end_doubt(now)
        self.current = address

    def after(self, address: Address) -> Endpoint | None:
        """Return the next usable endpoint after ``address``, cyclically; None without one.

        One that has sent nothing yet is used only if all are like that.
        """
        order = list(self.table)
        start = order.index(address) + 1
        others = (self.table[other] for other in order[start:] + order[: start - 1])
        usable = [other for other in others if other.usable]
        tried = (other for other in usable if other.state is not UNTRIED)
        return next(tried, usable[0] if usable else None)

    def choose_on(self, node: str) -> Endpoint:
        """Return the endpoint for a request that only ``node`` can answer, if it is known."""
        found = (one for one in self.table.values() if node and one.node == node and one.usable)
        return next(found, None) or self.choose()

    def of_node(self, node: str) -> Endpoint | None:
        return next((one for one in self.table.values() if node_of(one.address) == node), None)

    def live_by(self, ttl_ms: int) -> None:
        """Leave a silent endpoint soon enough to keep a session of that TTL alive at another."""
        self.silence_ms = min(ENDPOINT_SILENCE_MS, max(1, ttl_ms // SILENCES_PER_TTL))

    def of_leader(self) -> Endpoint | None:
        """Return the endpoint on the leader, if there is one that can be preferred."""
        if self.stays or not self.leader:
            return None
        on_leader = (one for one in self.table.values() if one.node == self.leader)
        return next((one for one in on_leader if one.usable and one.state is not UNABLE), None)

    def any_received(self) -> bool:
        return any(endpoint.received_at is not None for endpoint in self.table.values())

    def any_usable(self) -> bool:
        return any(endpoint.usable for endpoint in self.table.values())

    def all_refused(self) -> bool:
        return all(endpoint.state is REFUSED for endpoint in self.table.values())

    def linked(self, endpoint: Endpoint, now: Instant) -> None:
        """Note a new link: earlier faults of the endpoint belong to the old one."""
        endpoint.trust(now)
        if endpoint.owing_since is not None:
            endpoint.owing_since = now

    def fall_silent(self, owing: list[Address], now: Instant) -> list[Address]:
        """Leave the endpoints that have owed a reply for too long; return them."""
        fallen: list[Address] = []
        for address in owing:
            endpoint = self.table[address]
            if endpoint.owing_since is None or not endpoint.usable:
                continue
            if ms_between(endpoint.owing_since, now) >= self._silence_ms(endpoint):
                endpoint.enter(SILENT, now)
                fallen.append(address)
        return fallen

    def _silence_ms(self, endpoint: Endpoint) -> int:
        """Return the time for which ``endpoint`` may owe a reply (ms).

        It is short for one that never sent anything, while another did.
        """
        others = (one for one in self.table.values() if one.usable and one.received_at is not None)
        if endpoint.state is UNTRIED and any(others):
            return min(self.patience_ms, self.silence_ms)
        return self.silence_ms

    def next_at(self, now: Instant) -> Instant | None:
        """Return the time of the next probes, or at which the endpoint in use may be left."""
        used = self.table[self.current]
        if used.state is not UNTRIED or used.owing_since is None:
            return self.probe_at
        at = later(used.owing_since, self.patience_ms)
        return at if at > now else self.probe_at

    def doubt(self, endpoint: Endpoint, now: Instant) -> None:
        """Expect the endpoint in use to reply to a probe. If it is UNABLE, it stays that."""
        if endpoint.state is not UNABLE:
            endpoint.enter(DOUBTED, now)
        self.pause_ms = self.patience_ms
        self.probe_at = later(now, self.pause_ms)

    def end_doubt(self, now: Instant) -> None:
        """Send no more probes: the endpoint in use is fine, unusable, or needed no more."""
        self.probe_at = None
        endpoint = self.table[self.current]
        if endpoint.state is DOUBTED:
            endpoint.trust(now)

    def judge_patience(self, left_ms: int) -> None:
        """Increase the patience if an endpoint that was left for ``left_ms`` was only slow."""
        soon = left_ms < FALSE_ALARM_MS
        self.patience_ms = min(2 * self.patience_ms, ENDPOINT_SILENCE_MS) if soon else REPLY_MS

    def note_excuse(self, address: Address, excuse: str, now: Instant) -> None:
        if address in self.table:
            self.table[address].excuse, self.table[address].excused_at = excuse, now

    def describe(self, now: Instant) -> str:
        """Describe the state of every endpoint, with advice if none ever answered."""
        endpoints = self.table.values()
        described = ", ".join(_describe(endpoint, now) for endpoint in endpoints)
        answered = (one.received_at is not None or one.state is REFUSED for one in endpoints)
        if not self.advice or any(answered):
            return described
        return f"{described}. {self.advice}"


def _describe(endpoint: Endpoint, now: Instant) -> str:
    if endpoint.state is REFUSED:
        return endpoint.named()
    if excuse := endpoint.excuse_at(now):
        return f"{endpoint.label} ({excuse})"
    if endpoint.owing_since is not None:
        text = f"silent for {ms_between(endpoint.owing_since, now) / 1000:.1f} s"
        if endpoint.received_at is None:
            text += ", and has never answered"
    else:
        text = _DESCRIBED[endpoint.state]
    return f"{endpoint.label} ({text})"


_DESCRIBED = {
    UNTRIED: "not asked yet",
    LIVE: "answers",
    DOUBTED: "answers",
    UNABLE: "answers, but cannot serve now",
    SILENT: "left, since it was silent",
    BROKEN: "link broken",
}
"""The states of an endpoint that owes no reply, for texts."""


def note_life(state: SessionState, endpoint: Address, now: Instant) -> list[Effect]:
    """Record that ``endpoint`` sent something; if given up, move stranded requests to it."""
    known = state.endpoints.table.get(endpoint)
    if known is None:
        return []
    effects: list[Effect] = []
    first = known.received_at is None
    known.received_at, known.owing_since = now, None
    if known.state is not LIVE:
        effects += _show_life(state, known, now, first=first)
    if state.in_flight.cancels:
        effects += state.in_flight.cancel_again(endpoint, now)
    return effects


def _show_life(
    state: SessionState, endpoint: Endpoint, now: Instant, *, first: bool
) -> list[Effect]:
    """Enter LIVE, unless ``endpoint`` is UNABLE: only its reply to a probe ends that."""
    former, since = endpoint.state, endpoint.since
    if former is UNABLE:
        return []
    endpoint.enter(LIVE, now)
    if former in USABLE:
        return []
    if former is SILENT and endpoint.left_in_doubt and not first:
        state.endpoints.judge_patience(ms_between(since, now))
    endpoint.left_in_doubt = False
    return [*come_back(state, now), *prefer_leader(state, now)]


def come_back(state: SessionState, now: Instant) -> list[Effect]:
    """Move requests that are stranded at unusable endpoints to one that is usable again."""
    effects: list[Effect] = [Observe("client.endpoint_back")]
    for endpoint in state.endpoints.table.values():
        if not endpoint.usable:
            effects += state.in_flight.leave(endpoint.address, now)
    return effects


def prefer_leader(state: SessionState, now: Instant) -> list[Effect]:
    """Use the leader's endpoint, which saves a hop, if it is known and usable."""
    endpoints = state.endpoints
    leader, former = endpoints.of_leader(), endpoints.current
    if not state.session_lease.kept or leader is None or leader.address == former:
        return []
    moved = state.in_flight.leave(former, now, to=leader)
    return [Observe("client.leader_preferred"), *moved]


def note_node(
    state: SessionState, sender: Address, node: str, leader: str, now: Instant
) -> list[Effect]:
    """Note the node behind an endpoint, and the one that leads; act on changes only.

    After a leader reports that it cannot serve, followers may still name it. They are not believed
    until they must have noticed as well.
    """
    endpoints = state.endpoints
    endpoint = endpoints.table.get(sender)
    if endpoint is None:
        return []
    for other in endpoints.table.values() if leader else ():
        if other.node != leader or other.state is not UNABLE:
            continue
        if leader == node or not other.received_within(2 * TIMING.election_ms, now):
            other.enter(LIVE, now)
    changed = (leader and leader != endpoints.leader) or (node and node != endpoint.node)
    if not changed:
        return []
    endpoint.node, endpoints.leader = node or endpoint.node, leader or endpoints.leader
    return prefer_leader(state, now)


def look_after(state: SessionState, now: Instant, *, late: bool) -> list[Effect]:
    """Probe the endpoint in use if requests are ``late``, and the others if it does not reply."""
    endpoints = state.endpoints
    used = endpoints.table[endpoints.current]
    if not _can_change(state) or not used.usable:
        endpoints.end_doubt(now)
        return []
    if used.state in (LIVE, UNTRIED):
        endpoints.probe_at = None
        if not late or used.received_within(endpoints.patience_ms, now):
            return []
    if endpoints.probe_at is None:
        endpoints.doubt(used, now)
        return [_probe(state, used)]
    return _probe_all(state, now) if endpoints.probe_at <= now else []


def _can_change(state: SessionState) -> bool:
    """Return whether requests wait that another endpoint could serve as well."""
    waits = state.in_flight.pending or state.in_flight.cancels
    return bool(state.session_lease.kept and waits and len(state.endpoints.table) > 1)


def on_reply(state: SessionState, sender: Address, reply: ProbeReply, now: Instant) -> list[Effect]:
    """Note whether an endpoint serves; use it if the current one is silent or cannot serve."""
    endpoints, session_lease = state.endpoints, state.session_lease
    endpoint = endpoints.table.get(sender)
    if endpoint is None or reply.session not in (session_lease.name, session_lease.assigned):
        return [Observe("client.answer_of_another_session_dropped")]
    effects: list[Effect] = []
    if not reply.serving:
        if endpoint.usable:
            endpoint.enter(UNABLE, now)
    elif endpoint.usable:
        endpoint.enter(LIVE, now)
    else:
        effects += note_life(state, sender, now)
    endpoint.received_at = now
    if reply.serving:
        effects += note_node(state, sender, reply.node, reply.leader, now)
        effects += prefer_leader(state, now)
    used = endpoints.table[endpoints.current]
    if not session_lease.kept or not used.usable or not endpoint.usable:
        return effects
    if used is endpoint:
        if endpoint.state is not UNABLE or endpoints.probe_at is not None or not _can_change(state):
            return effects
        endpoints.doubt(endpoint, now)
        return [*effects, *_probe_all(state, now)]
    if used.state is DOUBTED and ms_between(used.since, now) >= endpoints.patience_ms:
        used.enter(SILENT, now)
        used.left_in_doubt = True
        effects.append(Observe("client.endpoint_silent"))
    elif used.state is UNABLE and endpoint.state is not UNABLE:
        effects.append(Observe("client.endpoint_not_serving"))
    else:
        return effects
    return [*effects, *leave(state, used.address, now, to=endpoint)]


def leave(
    state: SessionState, address: Address, now: Instant, to: Endpoint | None = None
) -> list[Effect]:
    """Leave an endpoint for ``to``, or for the next one that is usable.

    If it was the one in use, announce the session to the other at once.
    """
    former = state.endpoints.current
    moved = state.in_flight.leave(address, now, to)
    return moved if state.endpoints.current == former else [*moved, *hasten(state, now)]


def _probe_all(state: SessionState, now: Instant) -> list[Effect]:
    """Probe every usable endpoint, the one in use included: it may reply after all.

    Each pause until the next round is longer than the last.
    """
    endpoints = state.endpoints
    endpoints.probe_at = later(now, endpoints.pause_ms)
    endpoints.pause_ms = min(2 * endpoints.pause_ms, PROBE_PAUSE_MS_MAX)
    return [_probe(state, endpoint) for endpoint in endpoints.table.values() if endpoint.usable]


def _probe(state: SessionState, endpoint: Endpoint) -> Send:
    state.endpoints.probes += 1
    probe = Probe(session=state.session_lease.name, request=state.endpoints.probes)
    return Send(endpoint.address, probe)
