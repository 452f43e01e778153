"""Chooses the endpoint that a session uses: leaves one that is silent, and probes others."""

from __future__ import annotations

from fencelock.actors.api.probe_message import Probe, ProbeReply
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant
from fencelock.actors.session.cancellation import cancel_again
from fencelock.actors.session.endpoint import Endpoint
from fencelock.actors.session.keep_alive import hasten
from fencelock.actors.session.session_state import SessionState
from fencelock.actors.timing import TIMING


def hear(ledger: SessionState, gate: Address, now: Instant) -> list[Effect]:
    """Record that ``gate`` sent something; if it was given up, move stranded requests to it."""
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
