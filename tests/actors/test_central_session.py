"""A hold of `central` belongs to a session: how it ends without its lock client."""

from __future__ import annotations

import pytest
from support.central_scene import BROKER_A, SERVER, A, B, LoneClient, granted, request
from support.effects import HOST, T0, not_counted

from fencelock.actors.api.message import Contender
from fencelock.actors.central import message as messages
from fencelock.actors.central.server import LockServer
from fencelock.actors.effect import Persist, Send, Wake
from fencelock.actors.message import Address
from fencelock.actors.proxy.message import LockGranted, LockRevoked, ReleaseLock, ReleaseOutcome
from fencelock.actors.role_message import Level, RoleNotice

BROKER_C = Address("c/clients")
REVOKE = messages.Revoke(lock="l", client=A, number=1)


@pytest.fixture
def server() -> LockServer:
    return LockServer(SERVER, HOST)


def free(number: int, session: str = "s") -> messages.Free:
    return messages.Free(lock="l", number=number, session=session)


def replied(outcome: ReleaseOutcome, session: str = "s", holder: Contender | None = None) -> Send:
    reply = messages.FreeReply(lock="l", number=1, session=session, outcome=outcome, holder=holder)
    return Send(BROKER_C, reply)


def test_a_session_frees_its_hold_through_any_node_and_hears_the_same_again(
    server: LockServer,
) -> None:
    server.handle(A, request(A), T0)

    effects = not_counted(server.handle(BROKER_C, free(1), T0))
    assert effects == [Send(BROKER_A, REVOKE), replied(ReleaseOutcome.FREED)]
    assert server.held == {}
    assert not_counted(server.handle(BROKER_C, free(1), T0)) == [replied(ReleaseOutcome.FREED)]


@pytest.mark.parametrize("asked", [free(1, "t"), free(2)], ids=["session", "number"])
def test_what_is_not_held_so_is_not_freed(server: LockServer, asked: messages.Free) -> None:
    server.handle(A, request(A), T0)

    (reply,) = not_counted(server.handle(BROKER_C, asked, T0))

    assert isinstance(reply, Send)
    assert isinstance(reply.message, messages.FreeReply)
    assert reply.message.outcome is ReleaseOutcome.NOT_HELD
    assert "l" in server.held


def test_an_operator_frees_whatever_is_held_and_its_session_is_told_so(server: LockServer) -> None:
    server.handle(A, request(A), T0)
    holder = Contender(node="a", session="s", owner="o", fence=1, since_ms=0)

    revoke, notice, reply = not_counted(server.handle(BROKER_C, free(1, ""), T0))
    assert revoke == Send(BROKER_A, REVOKE)
    assert isinstance(notice, Send)
    assert isinstance(notice.message, RoleNotice)
    assert notice.message.level is Level.WARNING
    assert reply == replied(ReleaseOutcome.FREED, "", holder)
    assert not_counted(server.handle(BROKER_C, free(1, ""), T0)) == [reply]
    assert not_counted(server.handle(BROKER_C, free(1), T0)) == [replied(ReleaseOutcome.TAKEN)]


def test_nothing_is_granted_through_a_node_that_does_not_know_of_a_revoke(
    server: LockServer,
) -> None:
    server.handle(A, request(A), T0)
    server.handle(BROKER_C, free(1), T0)
    other = Address("a/clients-1-2")

    assert not_counted(server.handle(other, request(other), T0)) == [Send(BROKER_A, REVOKE)]
    server.handle(BROKER_C, messages.Revoked(lock="l", client=A, number=1), T0)
    assert not_counted(server.handle(other, request(other), T0)) == [Send(BROKER_A, REVOKE)]
    server.handle(BROKER_A, messages.Revoked(lock="l", client=A, number=1), T0)
    assert not_counted(server.handle(other, request(other), T0)) == [granted(other, 2)]


def test_an_ended_session_holds_nothing_and_is_granted_nothing(server: LockServer) -> None:
    server.handle(A, request(A), T0)
    server.handle(B, request(B, "m"), T0)
    ended = Send(BROKER_C, messages.SessionEnded(session="s"))

    effects = not_counted(server.handle(BROKER_C, messages.EndSession(session="s"), T0))

    assert effects[-1] == ended
    assert server.held == {}
    assert not_counted(server.handle(BROKER_C, messages.EndSession(session="s"), T0)) == [ended]
    late = not_counted(server.handle(A, request(A), T0))
    assert late == [Send(BROKER_A, messages.SessionEnded(session="s"))]


def test_a_journal_brings_back_what_has_ended(server: LockServer) -> None:
    server.journal = True
    effects = [
        *server.handle(A, request(A), T0),
        *server.handle(BROKER_C, free(1), T0),
        *server.handle(BROKER_C, messages.EndSession(session="s"), T0),
    ]
    records = tuple(effect.record for effect in effects if isinstance(effect, Persist))

    again = LockServer(SERVER, HOST, journal=True, records=records)

    assert (again.held, again.freed) == (server.held, server.freed)
    assert (again.revoked, again.ended) == (server.revoked, server.ended)


def got(ticket: int, fence: int) -> Send:
    return Send(BROKER_A, LockGranted(lock="l", ticket=ticket, fence=fence))


def settled(number: int) -> Send:
    return Send(BROKER_A, messages.Settled(lock="l", number=number, session="s"))


def confirmed(number: int) -> Send:
    return Send(BROKER_A, messages.Revoked(lock="l", client=A, number=number))


def test_held_ends_by_a_revoke_and_the_next_owner_asks(held: LoneClient) -> None:
    held.wants(2)

    taken, *rest = held.revoked(5)

    assert isinstance(taken, Send)
    assert isinstance(taken.message, LockRevoked)
    assert taken.message.ticket == 1
    assert rest == [settled(5), Send(SERVER, request(A)), Wake, confirmed(5)]
    held.is_in(messages.Mode.RELEASED, 5)


def test_releasing_is_released_by_a_revoke(held: LoneClient) -> None:
    held.hears(BROKER_A, ReleaseLock(lock="l", ticket=1))

    assert held.revoked(5) == [settled(5), Send(BROKER_A, messages.Idle(wants=1)), confirmed(5)]
    held.is_in(messages.Mode.RELEASED, 5)


def test_a_late_revoke_changes_nothing(held: LoneClient) -> None:
    assert held.revoked(4) == [confirmed(4)]
    held.is_in(messages.Mode.HELD, 5)


def test_a_grant_that_comes_after_its_revoke_is_ignored(lone_client: LoneClient) -> None:
    lone_client.wants(1)
    assert lone_client.revoked(5) == [confirmed(5)]

    assert lone_client.granted(5) == []
    assert lone_client.granted(6) == [got(1, 6)]
