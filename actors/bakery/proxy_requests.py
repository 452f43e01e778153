"""Turns clients' requests to a proxy into requests to the leaders. Pure."""

from __future__ import annotations

from dataclasses import replace

from fencelock.actors.api.message import Acquire, Alive, Cancel, Inspect, Release
from fencelock.actors.api.session_message import End, Renew
from fencelock.actors.bakery import proxy_wording as words
from fencelock.actors.bakery.config import Terms, later
from fencelock.actors.bakery.in_flight import Asked, InFlightRequest, InFlightRequests, Kind, Name
from fencelock.actors.bakery.ticket import Who
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant

TRY_MS = 1_000
"""Time for a request that does not wait to learn that the lock is taken (ms)."""

LATE_MS = 150
"""Delay before the proxy itself ends a wait (ms): the leader with the ticket can say more."""

ANSWER_MS = 15_000
"""Timeout of a request that no leader answers (ms)."""


class ProxyRequests:
    """Begins requests to the leaders.

    Args:
        node: this node.
        in_flight_requests: the requests that wait for a reply.
        terms: default durations of requests.

    """

    def __init__(
        self,
        node: str,
        in_flight_requests: InFlightRequests,
        terms: Terms,
    ) -> None:
        self.node = node
        self.in_flight_requests = in_flight_requests
        self.terms = terms

    def begin(
        self,
        name: Name,
        asker: Address | None,
        asked: Asked,
        now: Instant,
        *,
        fence: int = 0,
        until: Instant | None = None,
        leader: str = "",
    ) -> list[Effect]:
        """Begin a request, unless it is in flight; then its reply goes to the last sender."""
        in_flight_request = self.in_flight_requests.by_name.get(name)
        if in_flight_request is not None:
            in_flight_request.asker, in_flight_request.asked = asker, asked
            return self._still(asker, asked.session)
        return self.in_flight_requests.add(
            name, asker, asked, now, fence=fence, until=until, leader=leader
        )

    def acquire(self, asker: Address, asked: Acquire, now: Instant) -> list[Effect]:
        """Request a lock; a request that is sent again is the same one."""
        who = Who(asked.session, asked.owner)
        name = Name(Kind.LOCK, asked.lock, who, asked.request)
        effects: list[Effect] = []
        for in_flight_request in self.in_flight_requests.about(asked.lock, who):
            if (
                in_flight_request.name.kind is Kind.LOCK
                and in_flight_request.name.request > name.request
            ):
                return [Observe("proxy.late_request_dropped")]
            if (
                in_flight_request.name.kind is Kind.LOCK
                and in_flight_request.name.request < name.request
            ):
                self.in_flight_requests.end(
                    in_flight_request
                )  # An owner is sequential: it gave up the old wait.
                if in_flight_request.asker is not None:
                    effects.append(words.given_up(in_flight_request))
        if name in self.in_flight_requests.by_name:
            self.in_flight_requests.by_name[name].asker = asker
            return [*effects, *self._still(asker, asked.session)]
        return [*effects, *self._begin_wait(name, asker, asked, now)]

    def _begin_wait(self, name: Name, asker: Address, asked: Acquire, now: Instant) -> list[Effect]:
        terms, until, note = self.terms, None, ""
        if asked.wait_ms is None and terms.wait_ms is not None:
            note = words.no_timeout_was_said(terms.wait_ms)
        asked = replace(
            asked,
            wait_ms=terms.wait_ms if asked.wait_ms is None else asked.wait_ms,
            hold_ms=asked.hold_ms or terms.hold_ms,
            grace_ms=asked.grace_ms or terms.grace_ms,
        )
        if asked.wait_ms is not None:
            until = later(now, (asked.wait_ms or TRY_MS) + LATE_MS)
        return self.in_flight_requests.add(name, asker, asked, now, until=until, note=note)

    def _still(self, asker: Address | None, session: str) -> list[Effect]:
        """Confirm that a repeated request is in flight, so that this proxy does not seem silent.

        The reply names no leader. Two proxies that see different leaders would send a client to and
        fro, which repeats its request at each, as fast as messages travel.
        """
        if asker is None:
            return []
        return [Send(asker, Alive(session=session, node=self.node))]

    def release(self, asker: Address, asked: Release, now: Instant) -> list[Effect]:
        """Have a hold dropped."""
        if asked.fence <= 0:
            return [words.not_held(asker, asked, self.node)]
        name = Name(Kind.UNLOCK, asked.lock, Who(asked.session, asked.owner), asked.request)
        return self.begin(name, asker, asked, now, fence=asked.fence)

    def renew(self, asker: Address, asked: Renew, now: Instant) -> list[Effect]:
        """Have the duration of a hold begin anew."""
        if asked.fence <= 0:
            return [words.not_held(asker, asked, self.node)]
        name = Name(Kind.PROLONG, asked.lock, Who(asked.session, asked.owner), asked.request)
        until = later(now, ANSWER_MS)
        return self.begin(name, asker, asked, now, fence=asked.fence, until=until)

    def cancel(self, asker: Address, asked: Cancel, now: Instant) -> list[Effect]:
        """Have a request dropped, in any state; repeatable."""
        who = Who(asked.session, asked.owner)
        leader = self._give_up_waits(asked.lock, who, asked.request)
        name = Name(Kind.UNLOCK, asked.lock, who, asked.request)
        return self.begin(name, asker, asked, now, leader=leader)

    def _give_up_waits(self, lock: str, who: Who, request: int) -> str:
        """End the waits; return the leader that has them, empty if none was asked."""
        leader = ""
        for in_flight_request in self.in_flight_requests.about(lock, who):
            if (
                in_flight_request.name.kind is Kind.LOCK
                and in_flight_request.name.request <= request
            ):
                leader = in_flight_request.leader
                self.in_flight_requests.end(in_flight_request)
        return leader

    def end(self, asker: Address, asked: End, now: Instant) -> list[Effect]:
        """Have everything of a session dropped."""
        self.drop_waits(asked.session)
        name = Name(Kind.UNLOCK_ALL, "", Who(asked.session, ""), 0)
        return self.begin(name, asker, asked, now, until=later(now, ANSWER_MS))

    def drop_waits(self, session: str) -> int:
        """Drop the waits of a session; return their number."""
        waits = [
            in_flight_request
            for in_flight_request in self.in_flight_requests.by_number.values()
            if in_flight_request.name.kind is Kind.LOCK
            and in_flight_request.name.who.session == session
        ]
        for in_flight_request in waits:
            self.in_flight_requests.end(in_flight_request)
        return len(waits)

    def inspect(self, asker: Address, asked: Inspect, now: Instant) -> list[Effect]:
        """Ask all leaders for the state of a lock until a quorum of them agrees."""
        name = Name(Kind.PEEK, asked.lock, Who(asker, ""), asked.request)
        return self.begin(name, asker, asked, now, until=later(now, ANSWER_MS))

    def undo(self, in_flight_request: InFlightRequest, now: Instant) -> list[Effect]:
        """Have a wait dropped that was sent to a leader, though no client waits for the reply."""
        if not in_flight_request.said:
            return []
        name = in_flight_request.name._replace(kind=Kind.UNLOCK)
        return self.begin(name, None, in_flight_request.asked, now, leader=in_flight_request.leader)
