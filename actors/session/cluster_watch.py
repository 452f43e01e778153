"""Subscription of a session's user to the state of the cluster."""

from __future__ import annotations

from fencelock.actors.api.cluster_message import ClusterDown, ClusterUp
from fencelock.actors.effect import Effect, Observe
from fencelock.actors.message import Address, Instant
from fencelock.actors.session.cluster_poll import state_of
from fencelock.actors.session.endpoint_selection import hear
from fencelock.actors.session.keep_alive import open_session
from fencelock.actors.session.session_state import SessionState


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
