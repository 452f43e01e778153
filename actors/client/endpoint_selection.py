"""What a session makes of its gates: which is back, and which of them spares a hop."""

from __future__ import annotations

from fencelock.actors.client.cancellation import cancel_again
from fencelock.actors.client.session_state import SessionState
from fencelock.actors.effect import Effect, Observe
from fencelock.actors.message import Address, Instant
from fencelock.actors.timing import TIMING


def hear(ledger: SessionState, gate: Address, now: Instant) -> list[Effect]:
    """Note a sign of life of ``gate``; if it was given up, bring it what is stranded."""
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
    """Now that a gate is usable again, bring it what is stranded at others."""
    effects: list[Effect] = [Observe("client.gate_back")]
    for gate in ledger.gates.table.values():
        if not gate.usable:
            effects += ledger.outstanding.leave(gate.address, now)
    return effects


def prefer_master(ledger: SessionState, now: Instant) -> list[Effect]:
    """Ask the master, where that spares a hop: it is known, one of the gates, and usable."""
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
    """Learn which node is behind a gate, and which one leads; act on news only.

    A leader that said it cannot serve is believed, until followers must have noticed as well.
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
