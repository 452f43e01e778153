"""The description of a node that runs `bakery`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fencelock.actors.api.message import Contender, Describe, LockStatus, NodeStatus
from fencelock.actors.api.self_report import Elected, MemberSeen
from fencelock.actors.bakery.event import Readiness, Tally
from fencelock.actors.bakery.in_flight import InFlightRequests, Kind
from fencelock.actors.effect import Effect, Send
from fencelock.actors.message import Address, Instant, ms_between
from fencelock.actors.proxy.message import Reported

LOCKS_SHOWN_MAX = 200
"""Maximum locks in one `NodeStatus`: 200 KiB with the longest names."""

WAITERS_SHOWN_MAX = 100
"""Maximum waiters shown of each."""


def describe(
    node: str,
    members: tuple[str, ...],
    in_flight_requests: InFlightRequests,
    tickets: Tally,
    reported: Reported,
    asked: Sequence[tuple[Address, Describe]],
    now: Instant,
    *,
    why_no_vote: str,
) -> list[Effect]:
    """Return the node's description for all that requested it.

    The locks are those of the tickets, where this node leads. Where no leader is ready they are
    those awaited through this proxy; otherwise the leaders describe them.
    """
    readiness = in_flight_requests.readiness
    leaders = tuple(leader.node for leader in readiness.leaders)
    detail = readiness.detail
    if why_no_vote and why_no_vote != detail:
        detail = f"{detail}; {why_no_vote}"
    locks = tickets.locks
    if not tickets.serving and not readiness.ready:
        locks = _locks(node, in_flight_requests, now)
    return [
        Send(
            asker,
            NodeStatus(
                node=node,
                protocol="bakery",
                nodes=members,
                ready=readiness.ready,
                detail=detail,
                uptime_ms=reported.uptime_ms,
                counters=reported.counters,
                locks=locks,
                session=question.session,
                request=question.request,
                master=leaders[0] if leaders else "",
                elected=Elected(readiness.epoch, leaders, _members(members, readiness)),
                roles=reported.roles if question.roles else (),
            ),
        )
        for asker, question in asked
    ]


def _members(members: tuple[str, ...], readiness: Readiness) -> tuple[MemberSeen, ...]:
    priorities = {member.node: member.priority for member in readiness.members}
    return tuple(MemberSeen(name, name in priorities, priorities.get(name, 0)) for name in members)


def _locks(node: str, in_flight_requests: InFlightRequests, now: Instant) -> tuple[LockStatus, ...]:
    """Return the locks that are awaited through this proxy."""
    waiting: dict[str, list[Contender]] = {}
    for in_flight_request in in_flight_requests.by_number.values():
        if in_flight_request.name.kind is Kind.LOCK and len(waiting) < LOCKS_SHOWN_MAX:
            who = in_flight_request.name.who
            since_ms = ms_between(in_flight_request.since, now)
            line = waiting.setdefault(in_flight_request.name.lock, [])
            line.append(Contender(node, who.session, who.owner, None, since_ms))
    return tuple(
        LockStatus(lock=lock, holder=None, waiters=tuple(line[:WAITERS_SHOWN_MAX]), waits_for=())
        for lock, line in sorted(waiting.items())
    )
