"""Chooses among a session's endpoints: one that is back, or the master's, which saves a hop."""

from __future__ import annotations

from fencelock.actors.effect import Effect, Observe
from fencelock.actors.message import Address, Instant
from fencelock.actors.session.cancellation import cancel_again
from fencelock.actors.session.session_state import SessionState
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
