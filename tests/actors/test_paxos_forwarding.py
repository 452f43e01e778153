"""Commands that a replica cannot put into the log itself: it forwards, holds or refuses them."""

from __future__ import annotations

import pytest
from support.effects import T0
from support.replicas import LISTENER, replica_of_a

from fencelock.actors.effect import Observe, Send
from fencelock.actors.message import Address, address_of
from fencelock.actors.paxos.config import leader_of, replica_of
from fencelock.actors.paxos.event import LeaderChanged
from fencelock.actors.paxos.message import COMMAND_BYTES_MAX, Decline, Declined, Propose
from fencelock.actors.paxos.replica import WAITING_BYTES_MAX, Replica

OTHER = address_of("b", "proxy")


@pytest.fixture
def replica() -> Replica:
    return replica_of_a()


def propose(number: int = 1, client: Address = LISTENER, command: bytes = b"x") -> Propose:
    return Propose(client=client, number=number, command=command)


def test_a_command_goes_to_the_leader_and_waits_while_none_is_known(replica: Replica) -> None:
    mine, forwarded = propose(1), Propose(client=OTHER, number=2, command=b"y", forwarded=True)
    assert replica.handle(LISTENER, mine, T0) == ()
    assert replica.handle(replica_of("b"), forwarded, T0) == ()

    followed = replica.handle(leader_of("a"), LeaderChanged(leader="c"), T0)

    passed = Propose(client=LISTENER, number=1, command=b"x", forwarded=True)
    assert list(followed) == [
        Send(LISTENER, LeaderChanged(leader="c")),
        Send(replica_of("c"), passed),
        Send(replica_of("c"), forwarded),
    ]
    declined = Declined(number=2, why=Decline.NOT_LEADER, leader="c")
    assert replica.handle(replica_of("b"), forwarded, T0) == (Send(OTHER, declined),)


def test_what_is_no_command_is_declined_or_dropped(replica: Replica) -> None:
    large = propose(command=b"x" * (COMMAND_BYTES_MAX + 1))
    invalid = Declined(number=1, why=Decline.INVALID, leader="")

    assert replica.handle(LISTENER, large, T0) == (Send(LISTENER, invalid),)
    nobody = propose(client=Address("nobody"))
    assert replica.handle(LISTENER, nobody, T0) == (Observe("paxos.impossible_client"),)


def test_commands_that_wait_for_a_leader_are_bounded_in_bytes(replica: Replica) -> None:
    large = b"x" * COMMAND_BYTES_MAX
    fitting = 1 + WAITING_BYTES_MAX // COMMAND_BYTES_MAX
    for number in range(1, fitting + 1):
        assert replica.handle(LISTENER, propose(number, command=large), T0) == ()
    full = Declined(number=0, why=Decline.OVERLOADED, leader="")
    assert replica.handle(LISTENER, propose(0, command=b"x"), T0) == (Send(LISTENER, full),)
    assert replica.handle(LISTENER, propose(1, command=large), T0) == ()  # This is a repetition.

    followed = replica.handle(leader_of("a"), LeaderChanged(leader="c"), T0)

    assert len(list(followed)) == 1 + fitting
    replica.handle(leader_of("a"), LeaderChanged(leader=""), T0)
    assert replica.handle(LISTENER, propose(0, command=b"x"), T0) == ()
