"""The slots and log times that commands get."""

from __future__ import annotations

from fencelock.actors.effect import Effect, Send
from fencelock.actors.message import NS_PER_MS, Instant, address_of
from fencelock.actors.paxos.event import Gather, Leadership, Order
from fencelock.actors.paxos.message import Ballot, Propose
from fencelock.actors.paxos.ordering import Ordering

REPLICA = address_of("a", "replica")
COMMANDER = address_of("a", "commander-3")
T0 = Instant(10**12)


def ordering(first: int = 1, time_ms: int = 0, applied_ms: int = 0) -> Ordering:
    """Return one whose leadership begins at ``T0``; phase one found stamps up to ``time_ms``."""
    one = Ordering((b"open",))
    one.clock.set(applied_ms, T0)
    ballot = Ballot(3, address_of("a", "leader"))
    leadership = Leadership(ballot=ballot, commander=COMMANDER, first=first, time_ms=time_ms)
    one.begin(leadership, applied_ms, T0)
    return one


def propose(one: Ordering, number: int) -> None:
    one.proposals.add(Propose(client=address_of("b", "proxy"), number=number, command=b"x"))


def orders(effects: list[Effect]) -> list[Order]:
    sent = [effect.message for effect in effects if isinstance(effect, Send)]
    return [message for message in sent if isinstance(message, Order)]


def test_all_commands_of_one_turn_share_a_slot() -> None:
    one = ordering()
    propose(one, 1)
    assert one.gather(REPLICA) == [Send(REPLICA, Gather())]
    propose(one, 2)
    assert one.gather(REPLICA) == []  # One is on its way, behind all that has come.

    (both,) = orders(one.order(2, T0))

    assert both.batch.commands == (b"x", b"x")
    assert one.gather(REPLICA) == [Send(REPLICA, Gather())]


def test_log_time_goes_on_from_what_phase_one_found_though_it_was_not_applied_here() -> None:
    """Or it would stand still until this node's own clock had caught up with that stamp."""
    one = ordering(time_ms=3_600_000, applied_ms=1_000)
    propose(one, 1)

    (order,) = orders(one.order(2, Instant(T0 + 500 * NS_PER_MS)))

    assert order.batch.time_ms == 3_600_500


def test_log_time_is_not_set_back_by_what_phase_one_found() -> None:
    one = ordering(time_ms=10, applied_ms=1_000)
    propose(one, 1)

    (order,) = orders(one.order(2, Instant(T0 + 500 * NS_PER_MS)))

    assert order.batch.time_ms == 1_500
