"""The endpoints of a client: their state, and the choice of the one in use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

from fencelock.actors.api.cluster_message import Probe, ProbeReply
from fencelock.actors.api.membership_message import NODE_ID, is_endpoint
from fencelock.actors.api.message import NodeAddress
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import NS_PER_MS, Address, Instant, address_of, ms_between, node_of
from fencelock.actors.session.lease import hasten
from fencelock.actors.timing import REPLY_MS, TIMING

if TYPE_CHECKING:
    from fencelock.actors.session.state import SessionState

ENDPOINTS_MAX = 64
"""Maximum number of addresses: more than a cluster has nodes, and each costs a link."""

ENDPOINT_SILENCE_MS = 3_000
"""An endpoint that owes a reply and is silent for this long is left for another (ms)."""

PROBE_PAUSE_MS_MAX = 4_000
"""Longest pause between two rounds of probes while no endpoint serves (ms)."""

FALSE_ALARM_MS = 3_000
"""An endpoint that sends something this soon after it was left was only slow (ms)."""

FIRST_SILENCE_MS = 500
"""`ENDPOINT_SILENCE_MS` for an endpoint that never replied, when another did (ms)."""


EXCUSE_MS = 2_000
"""Time for which a proxy's reason for not replying counts (ms). It repeats one that lasts.

Twice the interval of keep-alives to a node without a session: `SESSIONLESS_KEEP_MS` in `upkeep.py`.
"""

NEVER = Instant(0)

SILENCES_PER_TTL = 6
"""Number of silent endpoints that can be left, one after another, within a session's TTL."""


@dataclass(slots=True)
class Endpoint:
    """One node's proxy, as far as this client knows it."""

    address: Address
    label: str
    """Its name for users, in texts."""
    node: str = ""
    """The node behind it, once known; a client's links have names of their own."""
    received_at: Instant | None = None
    owing_since: Instant | None = None
    """The time of the first message since it last sent something, or None if it owes nothing."""
    down: bool = False
    """Whether its link broke, or it was silent for too long."""
    refused: str = ""
    """Reason why it is the wrong endpoint: another cluster or version, or a key."""
    by_key: bool = False
    """Whether that reason is about keys."""
    serving: bool = True
    """Whether it can get requests decided, according to its last reply to a probe."""
    seen_at: Instant | None = None
    """The time of its last reply to a probe."""
    left_at: Instant | None = None
    """The time at which it was left for not replying."""
    excuse: str = ""
    """The last reason it gave for not replying to requests."""
    excused_at: Instant = NEVER
    learned: bool = False
    """Whether the cluster named it, and not the user."""
    left: bool = False
    """Whether the cluster does not name it any more: it is dropped as soon as nothing needs it."""

    def excuse_at(self, now: Instant) -> str:
        """Return the reason that it gave for not replying to requests, if that still counts."""
        return self.excuse if ms_between(self.excused_at, now) < EXCUSE_MS else ""

    @property
    def usable(self) -> bool:
        return not self.down and not self.refused

    def named(self) -> str:
        """Return its label, with the reason if it refuses this client's frames."""
        if not self.refused:
            return self.label
        # A link's refusal begins with its source, which usually is the label.
        return f"{self.label} ({self.refused.removeprefix(f'{self.label}: ')})"

    def seen_within(self, ms: int, now: Instant) -> bool:
        seen = max(self.received_at or NEVER, self.seen_at or NEVER)
        return seen > NEVER and ms_between(seen, now) < ms


class Probing(Struct):
    """The probes of the endpoint in use, and of the others if it does not reply."""

    endpoint: Address | None = None
    sent_at: Instant = NEVER
    """The time of the first probe of the endpoint in use since its last sign of life."""
    due_at: Instant | None = None
    """The time at which all are probed next; None while there is no need."""
    step_ms: int = 0
    patience_ms: int = REPLY_MS
    """An endpoint that does not reply for this long is silent. Doubled by each false alarm."""
    number: int = 0

    def begin(self, endpoint: Address, now: Instant) -> None:
        """Expect ``endpoint`` to reply from now on."""
        self.endpoint, self.sent_at, self.step_ms = endpoint, now, self.patience_ms
        self.due_at = Instant(now + self.step_ms * NS_PER_MS)

    def again(self, now: Instant) -> None:
        """Note that all endpoints are probed now; each pause is longer than the last."""
        self.due_at = Instant(now + self.step_ms * NS_PER_MS)
        self.step_ms = min(2 * self.step_ms, PROBE_PAUSE_MS_MAX)

    def end(self) -> None:
        self.due_at = None

    def is_over(self, endpoint: Endpoint) -> bool:
        """Return whether ``endpoint`` has since shown that it lives, and serves."""
        seen = max(endpoint.received_at or NEVER, endpoint.seen_at or NEVER)
        return endpoint.serving and seen > self.sent_at

    def finds_silent(self, endpoint: Endpoint, now: Instant) -> bool:
        """Return whether ``endpoint`` was probed and has been silent for too long."""
        seen = max(endpoint.received_at or NEVER, endpoint.seen_at or NEVER)
        waits = (
            self.due_at is not None and endpoint.address == self.endpoint and seen <= self.sent_at
        )
        return waits and ms_between(self.sent_at, now) >= self.patience_ms

    def judge(self, endpoint: Endpoint, now: Instant) -> None:
        """Increase the timeout if ``endpoint``, which was left as silent, was only slow."""
        if endpoint.left_at is None:
            return
        soon = ms_between(endpoint.left_at, now) < FALSE_ALARM_MS
        self.patience_ms = min(2 * self.patience_ms, ENDPOINT_SILENCE_MS) if soon else REPLY_MS
        endpoint.left_at = None


class Endpoints(Struct):
    """All endpoints of one client, in the order of the user's list, and the one in use.

    ``current`` changes only if it becomes unusable, if it does not serve while another does, or if
    the endpoint of the leader is usable (`prefer_leader`).
    """

    table: dict[Address, Endpoint]
    current: Address
    silence_ms: int = ENDPOINT_SILENCE_MS
    """As the constant, or less where a session's TTL is too short for that."""
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
        self.table[address] = Endpoint(address, label, node=name, down=True, learned=True)
        return True

    def choose(self) -> Endpoint:
        """Return the endpoint for a new request; the current one if none is usable."""
        endpoint = self.table[self.current]
        if not endpoint.down and not endpoint.refused:
            return endpoint
        following = self.after(self.current)
        if following is None:
            return endpoint
        self.current = following.address
        return following

    def after(self, address: Address) -> Endpoint | None:
        """Return the next usable endpoint after ``address``, cyclically; None without one."""
        order = list(self.table)
        start = order.index(address) + 1
        for other in order[start:] + order[: start - 1]:
            if self.table[other].usable:
                return self.table[other]
        return None

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
        return next((one for one in on_leader if one.usable and one.serving), None)

    def any_received(self) -> bool:
        return any(endpoint.received_at is not None for endpoint in self.table.values())

    def any_usable(self) -> bool:
        return any(endpoint.usable for endpoint in self.table.values())

    def all_refused(self) -> bool:
        return all(endpoint.refused for endpoint in self.table.values())

    def linked(self, endpoint: Endpoint, now: Instant) -> None:
        """Note a new link: earlier faults of the endpoint belong to the old one."""
        endpoint.down, endpoint.refused, endpoint.serving = False, "", True
        if endpoint.owing_since is not None:
            endpoint.owing_since = now

    def fall_silent(self, busy: list[Address], now: Instant) -> list[Address]:
        """Mark the endpoints in ``busy`` that have been silent for too long; return them."""
        fallen: list[Address] = []
        for address in busy:
            endpoint = self.table[address]
            if endpoint.owing_since is None or not endpoint.usable:
                continue
            if ms_between(endpoint.owing_since, now) >= self._patience_ms(endpoint):
                endpoint.down = True
                fallen.append(address)
        return fallen

    def note_excuse(self, address: Address, excuse: str, now: Instant) -> None:
        if address in self.table:
            self.table[address].excuse, self.table[address].excused_at = excuse, now

    def describe(self, now: Instant) -> str:
        """Describe the state of every endpoint, with advice if none ever answered."""
        endpoints = self.table.values()
        described = ", ".join(_describe(endpoint, now) for endpoint in endpoints)
        if not self.advice or any(one.received_at is not None or one.refused for one in endpoints):
            return described
        return f"{described}. {self.advice}"

    def _patience_ms(self, endpoint: Endpoint) -> int:
        others = any(
            other.usable and other.received_at is not None for other in self.table.values()
        )
        first = endpoint.received_at is None and others
        return min(FIRST_SILENCE_MS, self.silence_ms) if first else self.silence_ms


def _describe(endpoint: Endpoint, now: Instant) -> str:
    if endpoint.refused:
        return endpoint.named()
    if excuse := endpoint.excuse_at(now):
        return f"{endpoint.label} ({excuse})"
    if endpoint.owing_since is None:
        if endpoint.down:
            return f"{endpoint.label} (link broken)"
        if endpoint.received_at is None and endpoint.seen_at is None:
            return f"{endpoint.label} (not asked yet)"
        answers = "answers" if endpoint.serving else "answers, but cannot serve now"
        return f"{endpoint.label} ({answers})"
    silent = f"silent for {ms_between(endpoint.owing_since, now) / 1000:.1f} s"
    if endpoint.received_at is None:
        silent += ", and has never answered"
    return f"{endpoint.label} ({silent})"


def note_life(state: SessionState, endpoint: Address, now: Instant) -> list[Effect]:
    """Record that ``endpoint`` sent something; if given up, move stranded requests to it."""
    known = state.endpoints.table.get(endpoint)
    if known is None:
        return []
    effects: list[Effect] = []
    known.received_at, known.owing_since = now, None
    if known.down or known.refused:
        known.down, known.refused, known.serving = False, "", True
        state.probing.judge(known, now)
        effects += [*come_back(state, now), *prefer_leader(state, now)]
    if state.in_flight.cancels:
        effects += state.in_flight.cancel_again(endpoint, now)
    return effects


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
    endpoints.current = leader.address
    moved = state.in_flight.move(former, leader.address, now)
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
        if other.node == leader and not other.serving:
            own = leader == node
            other.serving = own or not other.seen_within(2 * TIMING.election_ms, now)
    changed = (leader and leader != endpoints.leader) or (node and node != endpoint.node)
    if not changed:
        return []
    endpoint.node, endpoints.leader = node or endpoint.node, leader or endpoints.leader
    return prefer_leader(state, now)


def look_after(state: SessionState, now: Instant, *, late: bool) -> list[Effect]:
    """Probe the endpoint in use if requests are ``late``, and the others if it does not reply."""
    endpoints, probing = state.endpoints, state.probing
    endpoint = endpoints.table[endpoints.current]
    waits = state.in_flight.pending or state.in_flight.cancels
    if (
        not state.session_lease.kept
        or not endpoint.usable
        or not waits
        or len(endpoints.table) == 1
    ):
        probing.end()
        return []
    if probing.endpoint != endpoint.address or probing.is_over(endpoint):
        probing.end()
    if probing.due_at is None:
        if endpoint.serving and (not late or endpoint.seen_within(probing.patience_ms, now)):
            return []
        probing.begin(endpoint.address, now)
        return [_probe(state, endpoint)]
    if probing.due_at > now:
        return []
    return _probe_all(state, now)


def on_reply(state: SessionState, sender: Address, reply: ProbeReply, now: Instant) -> list[Effect]:
    """Note whether an endpoint serves; use it if the current one is silent or cannot serve."""
    endpoints, probing, session_lease = state.endpoints, state.probing, state.session_lease
    endpoint = endpoints.table.get(sender)
    if endpoint is None or reply.session not in (session_lease.name, session_lease.assigned):
        return [Observe("client.answer_of_another_session_dropped")]
    endpoint.seen_at, endpoint.serving = now, reply.serving
    effects: list[Effect] = []
    if reply.serving:
        if endpoint.down:
            effects += note_life(state, sender, now)
        effects += note_node(state, sender, reply.node, reply.leader, now)
        effects += prefer_leader(state, now)
    used = endpoints.table[endpoints.current]
    if not session_lease.kept or not used.usable or not endpoint.usable:
        return effects
    if used is endpoint:
        waits = state.in_flight.pending or state.in_flight.cancels
        if endpoint.serving or not waits or probing.due_at is not None or len(endpoints.table) == 1:
            return effects
        probing.begin(endpoint.address, now)
        return [*effects, *_probe_all(state, now)]
    if probing.finds_silent(used, now):
        used.down, used.left_at = True, now
        return [*effects, Observe("client.endpoint_silent"), *_leave_for(state, endpoint, now)]
    if not used.serving and endpoint.serving:
        return [*effects, Observe("client.endpoint_not_serving"), *_leave_for(state, endpoint, now)]
    return effects


def _leave_for(state: SessionState, endpoint: Endpoint, now: Instant) -> list[Effect]:
    state.probing.end()
    former, state.endpoints.current = state.endpoints.current, endpoint.address
    moved = state.in_flight.move(former, endpoint.address, now)
    return [*moved, *hasten(state, now)]


def _probe_all(state: SessionState, now: Instant) -> list[Effect]:
    """Probe every usable endpoint, the one in use included: it may reply after all."""
    state.probing.again(now)
    return [
        _probe(state, endpoint) for endpoint in state.endpoints.table.values() if endpoint.usable
    ]


def _probe(state: SessionState, endpoint: Endpoint) -> Send:
    state.probing.number += 1
    return Send(
        endpoint.address, Probe(session=state.session_lease.name, request=state.probing.number)
    )
