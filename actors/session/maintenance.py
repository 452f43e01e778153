"""Regular tasks of a session: keep-alives, repetition, choice of the endpoint, cluster watch."""

from __future__ import annotations

from fencelock.actors.api.cluster_message import ClusterDown, ClusterUp
from fencelock.actors.api.probe_message import Probe, ProbeReply
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant
from fencelock.actors.session.cancellation import cancel_again
from fencelock.actors.session.endpoint import Endpoint
from fencelock.actors.session.keep_alive import (
    end_sessions,
    greet,
    hasten,
    keep_session,
    open_session,
    probe,
)
from fencelock.actors.session.pending import later
from fencelock.actors.session.rejection import silence, wrong_cluster
from fencelock.actors.session.session_state import SessionState, state_of
from fencelock.actors.timing import TIMING


def hear(ledger: SessionState, gate: Address, now: Instant) -> list[Effect]:
    """Note a sign of life of ``gate``; if it was given up, move stranded requests to it."""
    known = ledger.gates.table.get(gate)
    if known is None:
        return []
    effects: list[Effect] = []
    if known.heard(now):
        known.serving = True
        ledger.probing.judge(known, now)
        effects += [*come_back(ledger, now), *prefer_master(ledger, now)]
    if ledger.outstanding.withdrawals:
        effects += cancel_again(ledger, gate, now)
    return effects


def come_back(ledger: SessionState, now: Instant) -> list[Effect]:
    """Move requests that are stranded at unusable endpoints to one that is usable again."""
    effects: list[Effect] = [Observe("client.gate_back")]
    for gate in ledger.gates.table.values():
        if not gate.usable:
            effects += ledger.outstanding.leave(gate.address, now)
    return effects


def prefer_master(ledger: SessionState, now: Instant) -> list[Effect]:
    """Use the master's endpoint, which saves a hop, if it is known and usable."""
    gates = ledger.gates
    master, former = gates.of_master(), gates.current
    if not ledger.session_lease.kept or master is None or master.address == former:
        return []
    gates.current = master.address
    moved = ledger.outstanding.move(former, master.address, now)
    return [Observe("client.master_preferred"), *moved]


def note_node(
    ledger: SessionState, sender: Address, node: str, master: str, now: Instant
) -> list[Effect]:
    """Note the node behind an endpoint, and the one that leads; act on changes only.

    A leader that reported that it cannot serve is not used until followers must have noticed as
    well.
    """
    gates = ledger.gates
    gate = gates.table.get(sender)
    if gate is None:
        return []
    for other in gates.table.values() if master else ():
        if other.node == master and not other.serving:
            own = master == node
            other.serving = own or not other.seen_within(2 * TIMING.election_ms, now)
    news = (master and master != gates.master) or (node and node != gate.node)
    if not news:
        return []
    gate.node, gates.master = node or gate.node, master or gates.master
    return prefer_master(ledger, now)


def look_after(ledger: SessionState, now: Instant, *, late: bool) -> list[Effect]:
    """Probe the endpoint in use if requests are ``late``, and the others if it does not reply."""
    gates, probing = ledger.gates, ledger.probing
    gate = gates.table[gates.current]
    waits = ledger.outstanding.pending or ledger.outstanding.withdrawals
    if not ledger.session_lease.kept or not gate.usable or not waits or len(gates.table) == 1:
        probing.end()
        return []
    if probing.gate != gate.address or probing.is_over(gate):
        probing.end()
    if probing.due_at is None:
        if gate.serving and (not late or gate.seen_within(probing.patience_ms, now)):
            return []
        probing.begin(gate.address, now)
        return [_probe(ledger, gate)]
    if probing.due_at > now:
        return []
    return _probe_all(ledger, now)


def on_reply(
    ledger: SessionState, sender: Address, reply: ProbeReply, now: Instant
) -> list[Effect]:
    """Note whether an endpoint serves; use it if the current one is silent or cannot serve."""
    gates, probing, session_lease = ledger.gates, ledger.probing, ledger.session_lease
    gate = gates.table.get(sender)
    if gate is None or reply.session not in (session_lease.name, session_lease.assigned):
        return [Observe("client.answer_of_another_session_dropped")]
    gate.seen_at, gate.serving = now, reply.serving
    effects: list[Effect] = []
    if reply.serving:
        if gate.down:
            effects += hear(ledger, sender, now)
        effects += note_node(ledger, sender, reply.node, reply.leader, now)
        effects += prefer_master(ledger, now)
    used = gates.table[gates.current]
    if not session_lease.kept or not used.usable or not gate.usable:
        return effects
    if used is gate:
        waits = ledger.outstanding.pending or ledger.outstanding.withdrawals
        if gate.serving or not waits or probing.due_at is not None or len(gates.table) == 1:
            return effects
        probing.begin(gate.address, now)
        return [*effects, *_probe_all(ledger, now)]
    if probing.finds_silent(used, now):
        used.down, used.left_at = True, now
        return [*effects, Observe("client.gate_silent"), *_leave_for(ledger, gate, now)]
    if not used.serving and gate.serving:
        return [*effects, Observe("client.gate_not_serving"), *_leave_for(ledger, gate, now)]
    return effects


def _leave_for(ledger: SessionState, gate: Endpoint, now: Instant) -> list[Effect]:
    ledger.probing.end()
    former, ledger.gates.current = ledger.gates.current, gate.address
    moved = ledger.outstanding.move(former, gate.address, now)
    return [*moved, *hasten(ledger, now)]


def _probe_all(ledger: SessionState, now: Instant) -> list[Effect]:
    """Probe every usable endpoint, the one in use included: it may reply after all."""
    ledger.probing.again(now)
    return [_probe(ledger, gate) for gate in ledger.gates.table.values() if gate.usable]


def _probe(ledger: SessionState, gate: Endpoint) -> Send:
    ledger.probing.number += 1
    return Send(
        gate.address, Probe(session=ledger.session_lease.name, request=ledger.probing.number)
    )


def watch(ledger: SessionState, now: Instant) -> list[Effect]:
    """Begin to watch: from now on the session is opened and kept alive."""
    ledger.cluster_poll.wanted = True
    return [*keep_watching(ledger, now), *open_session(ledger, now)]


def keep_watching(ledger: SessionState, now: Instant) -> list[Effect]:
    """Ask the endpoint in use, if that is due; report a state that is unknown."""
    cluster_poll, gates, session_lease = ledger.cluster_poll, ledger.gates, ledger.session_lease
    if not cluster_poll.wanted:
        return []
    session_lease.need(now)
    effects: list[Effect] = []
    gate = gates.table[gates.current]
    if not session_lease.ready or not gate.usable:
        cluster_poll.forget(now)
    elif (word := cluster_poll.ask(gate.address, session_lease.assigned, now)) is not None:
        owes = not cluster_poll.known  # A later reply comes only with a change.
        effects.append(ledger.outstanding.say(gate.address, word, now, owes=owes))
    return [*effects, *cluster_poll.tell_unknown(ledger.watcher, gates, now)]


def on_news(
    ledger: SessionState, sender: Address, word: ClusterUp | ClusterDown, now: Instant
) -> list[Effect]:
    """Pass on the state of the cluster, and ask for the next."""
    if word.session != ledger.session_lease.assigned or not ledger.cluster_poll.hear(
        sender, word, now
    ):
        return [Observe("client.late_answer_dropped")]
    effects = hear(ledger, sender, now)
    effects += ledger.cluster_poll.tell(ledger.watcher, state_of(word))
    return [*effects, *keep_watching(ledger, now)]


KEEPALIVE_MS = 1_000
"""Interval of keep-alives to an endpoint at which anything is pending or held (ms).

It applies where the cluster keeps no sessions; else see `SessionLease.keep_ms`.
"""


def keep_up(ledger: SessionState, now: Instant) -> list[Effect]:
    """Do what is due: send keep-alives, leave silent endpoints, end timed-out requests, repeat."""
    effects: list[Effect] = []
    busy = _busy(ledger, now)
    _forgive_idle(ledger, busy)
    if ledger.session_lease.kept:
        effects += ledger.tell_watcher(now)
    elif not (greeted := _greeted(ledger, busy)):
        ledger.greet_at = None
    elif ledger.greet_at is None or ledger.greet_at <= now:
        effects += greet(ledger, greeted, now)
        ledger.greet_at = later(now, KEEPALIVE_MS)
    for gate in ledger.gates.fall_silent(busy, now):
        effects.append(Observe("client.gate_silent"))
        effects += _leave(ledger, gate, now)
    for pending in ledger.outstanding.over(now):
        if pending.survey:
            ledger.outstanding.drop(pending)
        else:
            effects.append(Observe("client.unanswered"))
            effects += ledger.refuse(pending, silence(pending, ledger.gates, now), now)
    repeated = ledger.outstanding.repeat(now)
    if repeated:
        probe(ledger, now)
    effects += look_after(ledger, now, late=bool(repeated))
    effects += keep_watching(ledger, now)
    effects += [*repeated, *open_session(ledger, now), *keep_session(ledger, now)]
    return [*effects, *end_sessions(ledger, now), *ledger.finish_surveys()]


def on_link_up(ledger: SessionState, node: str, now: Instant) -> list[Effect]:
    """Send ``node`` a keep-alive, since it may be new, and repeat what is unanswered there."""
    gate = ledger.gates.of_node(node)
    if gate is None:
        return [Observe("client.unknown_link")]
    revived = not gate.usable
    ledger.gates.linked(gate, now)
    ledger.outstanding.hurry(gate.address, now)
    effects = come_back(ledger, now) if revived else []
    effects += prefer_master(ledger, now)
    effects += greet(ledger, [gate.address], now)
    return effects + ledger.outstanding.repeat(now) + keep_watching(ledger, now)


def on_link_down(ledger: SessionState, node: str, now: Instant) -> list[Effect]:
    """Move the requests that can be moved to another endpoint."""
    gate = ledger.gates.of_node(node)
    if gate is None:
        return [Observe("client.unknown_link")]
    gate.down = True
    left = _leave(ledger, gate.address, now)
    left += keep_watching(ledger, now)
    return [Observe("client.link_down"), *left, *ledger.finish_surveys()]


def on_link_refused(ledger: SessionState, node: str, detail: str, now: Instant) -> list[Effect]:
    """Stop using this endpoint; if it was the last, refuse every user's request."""
    gate = ledger.gates.of_node(node)
    if gate is None:
        return [Observe("client.unknown_link")]
    gate.refused = detail
    effects: list[Effect] = [Observe("client.gate_refused")]
    if ledger.gates.all_refused():
        no = wrong_cluster(ledger.gates, now)
        for pending in list(ledger.outstanding.pending.values()):
            if not pending.survey:
                effects += ledger.refuse(pending, no, now)
    else:
        effects += _leave(ledger, gate.address, now)
    return effects + keep_watching(ledger, now) + ledger.finish_surveys()


def _leave(ledger: SessionState, gate: Address, now: Instant) -> list[Effect]:
    """Leave ``gate``; if it was the one in use, announce the session to the next at once."""
    former = ledger.gates.current
    effects = ledger.outstanding.leave(gate, now)
    if ledger.gates.current != former:
        effects += hasten(ledger, now)
    return effects


def _busy(ledger: SessionState, now: Instant) -> list[Address]:
    """Return the endpoints that need keep-alives, in order; all, if none replies."""
    outstanding, gates = ledger.outstanding, ledger.gates
    used = {question.gate for question in outstanding.pending.values()}
    if ledger.session_lease.kept:
        used |= {gates.current} if ledger.session_used(now) else set()
    else:
        used |= {hold.gate for hold in ledger.holds.values()}
    if outstanding.pending and not gates.any_usable():
        return list(gates.table)
    return [gate for gate in gates.table if gate in used]


def _greeted(ledger: SessionState, busy: list[Address]) -> list[Address]:
    """Return the endpoints that get keep-alives: busy ones, and those that owe a `Cancelled`."""
    owing = {debt.gate or ledger.gates.current for debt in ledger.outstanding.withdrawals}
    return [gate for gate in ledger.gates.table if gate in owing or gate in busy]


def _forgive_idle(ledger: SessionState, busy: list[Address]) -> None:
    """Ignore the silence of an endpoint that owes us nothing."""
    owing = {debt.gate or ledger.gates.current for debt in ledger.outstanding.withdrawals}
    for gate in ledger.gates.table.values():
        if gate.address not in busy and gate.address not in owing:
            gate.owing_since = None
