"""What a session does so that its user learns how the cluster is, unasked."""

from __future__ import annotations

from fencelock.actors.client.ledger import Ledger
from fencelock.actors.client.outlook import state_of
from fencelock.actors.client.standing import hear
from fencelock.actors.client.voice import open_session
from fencelock.actors.effect import Effect, Observe
from fencelock.actors.lock.cluster_message import ClusterDown, ClusterUp
from fencelock.actors.message import Address, Instant


def watch(ledger: Ledger, now: Instant) -> list[Effect]:
    """Begin to watch: from now on the session is kept, and kept alive."""
    ledger.outlook.wanted = True
    return [*keep_watching(ledger, now), *open_session(ledger, now)]


def keep_watching(ledger: Ledger, now: Instant) -> list[Effect]:
    """Ask the gate in use, if it is time to; say so if nobody knows how the cluster is."""
    outlook, gates, tenure = ledger.outlook, ledger.gates, ledger.tenure
    if not outlook.wanted:
        return []
    tenure.need(now)
    effects: list[Effect] = []
    gate = gates.table[gates.current]
    if not tenure.ready or not gate.usable:
        outlook.forget(now)
    elif (word := outlook.ask(gate.address, tenure.assigned, now)) is not None:
        owes = not outlook.known  # A change may come much later.
        effects.append(ledger.outstanding.say(gate.address, word, now, owes=owes))
    return [*effects, *outlook.tell_unknown(ledger.watcher, gates, now)]


def on_news(
    ledger: Ledger, sender: Address, word: ClusterUp | ClusterDown, now: Instant
) -> list[Effect]:
    """Pass on how the cluster is, and ask for what comes next."""
    if word.session != ledger.tenure.assigned or not ledger.outlook.hear(sender, word, now):
        return [Observe("client.late_answer_dropped")]
    effects = hear(ledger, sender, now)
    effects += ledger.outlook.tell(ledger.watcher, state_of(word))
    return [*effects, *keep_watching(ledger, now)]
