"""The lock manager behind a node's proxy: requests, waits, holds, and their replies."""

from __future__ import annotations

from fencelock.actors.api.message import Acquire, Cancel, Reason, Release
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, ms_between
from fencelock.actors.proxy.confirming import Confirming, HoldKey
from fencelock.actors.proxy.lock_request import Key, LockRequest, LockRequests, Phase
from fencelock.actors.proxy.message import Full, Give, Given, Got, Look, Seen, Taken, Want
from fencelock.actors.proxy.timer import TryLook, WaitOver, nap
from fencelock.actors.proxy.wording import (
    cancelled,
    granted,
    lost,
    refuse,
    refused,
    released,
    why_it_ended,
)

CLAIMS_MAX = 100_000
"""Maximum waits and holds through one node; further requests are refused, to bound memory."""

TRY_MS = 1_000
"""Time for a request that does not wait (``wait_ms`` 0) to learn that the lock is taken (ms)."""

TRY_LOOK_MS = 20
"""Interval at which such a request checks whether another owner is ahead (ms)."""


class LockManager:
    """Keeps the claims of one node. Requests are checked before.

    Invariants:
        D1  At most one claim of this node holds a lock, and the backend granted it; a
            second grant is released.
        D2  Every ticket gets one `Want` and at most one `Give`.
        D3  A request that is sent again gets the first reply.

    Args:
        node: this node.
        protocol: the name of the protocol behind, for texts.
        backend: the role that grants locks, see `fencelock.actors.proxy.backend`.
        confirming: requests to be confirmed by a backend that keeps holds by session; None if the
            backend does not, so that a hold lives and dies with this node.

    """

    def __init__(
        self,
        *,
        node: str,
        protocol: str,
        backend: Address,
        confirming: Confirming | None = None,
    ) -> None:
        self.node = node
        self.confirming = confirming
        self.protocol = protocol
        self.backend = backend
        self.claims = LockRequests()
        self.tickets = 0
        self.looks = 0
        self.endings: dict[int, LockRequest] = {}

    def acquire(self, asker: Address, acquire: Acquire, now: Instant) -> Effects:
        """Let an owner wait, or repeat an earlier reply."""
        key = Key(acquire.session, acquire.owner, acquire.lock)
        effects: list[Effect] = []
        claim = self.claims.by_key.get(key)
        if claim is not None and acquire.request == claim.request:
            return self._again(claim, asker)
        request, answer = self.claims.answers.get(key, (0, None))
        if answer is not None and acquire.request == request:
            return [Send(asker, answer), Observe("proxy.answered_again")]
        if acquire.request < max(request, claim.request if claim is not None else 0):
            return [Observe("proxy.late_request_dropped")]
        if claim is not None:
            if claim.phase is Phase.HELD:
                text = f"lock {acquire.lock!r}: this owner holds it, under fence {claim.fence}"
                return [refuse(asker, acquire, Reason.ALREADY_HELD, text)]
            effects += self.withdraw(claim)  # An owner is sequential: it gave up the old wait.
        if len(self.claims.by_key) >= CLAIMS_MAX:
            text = f"node {self.node} serves {CLAIMS_MAX} waits and holds, its limit"
            return [*effects, refuse(asker, acquire, Reason.OVERLOADED, text)]
        return effects + self._claim(key, asker, acquire, now)

    def _claim(self, key: Key, asker: Address, acquire: Acquire, now: Instant) -> list[Effect]:
        self.tickets += 1
        claim = LockRequest(
            key=key,
            ticket=self.tickets,
            request=acquire.request,
            asker=asker,
            since=now,
            wait_ms=acquire.wait_ms,
        )
        self.claims.add(claim)
        effects: list[Effect] = [
            Send(
                self.backend,
                Want(
                    lock=key.lock,
                    ticket=claim.ticket,
                    session=key.session,
                    owner=key.owner,
                ),
            )
        ]
        if acquire.wait_ms is not None:
            effects.append(nap(claim.ticket, acquire.wait_ms or TRY_MS))
        if acquire.wait_ms == 0:
            effects += self._look_for(claim)
        return effects

    def _again(self, claim: LockRequest, asker: Address) -> Effects:
        claim.asker = asker
        if claim.phase is Phase.HELD:
            return [Send(asker, granted(claim)), Observe("proxy.answered_again")]
        return ()

    def got(self, got: Got, now: Instant) -> Effects:
        """Reply to the client that its lock was granted."""
        claim = self.claims.by_ticket.get(got.ticket)
        if claim is None or claim.phase is not Phase.WAITING:
            return ()  # It crossed with our `Give`, which releases what was granted.
        holder = self.claims.holder.get(got.lock)
        if holder is not None:  # A lock server that lost its memory may grant a lock twice.
            self._forget_query(claim)
            text = f"lock {got.lock!r}: granted under fence {got.fence}, while fence {holder.fence}"
            give = Send(self.backend, Give(lock=got.lock, ticket=got.ticket))
            refusal = self._end(claim, Reason.UNAVAILABLE, f"{text} holds it through {self.node}")
            return [give, *refusal, Observe("proxy.granted_twice")]
        self.claims.grant(claim, got.fence, now)  # D1
        self._forget_query(claim)
        return [Send(claim.asker, granted(claim)), Observe("proxy.granted")]

    def taken(self, taken: Taken) -> Effects:
        """Drop a hold that the protocol took away, and notify its client."""
        claim = self.claims.by_ticket.get(taken.ticket)
        if claim is None or claim.phase is not Phase.HELD:
            return ()
        self.claims.drop(claim)
        return [Send(claim.asker, lost(claim, taken.detail)), Observe("proxy.hold_taken")]

    def full(self, full: Full) -> Effects:
        """Reply to the client that the backend cannot queue it."""
        claim = self.claims.by_ticket.get(full.ticket)
        if claim is None or claim.phase is Phase.HELD:
            return ()
        self._forget_query(claim)
        return self._end(claim, Reason.OVERLOADED, full.detail)

    def release(self, asker: Address, release: Release) -> Effects:
        """Release a held lock, once."""
        claim = self.claims.holder.get(release.lock)
        key = Key(release.session, release.owner, release.lock)
        request, answer = self.claims.answers.get(key, (0, None))
        if answer is not None and request == release.request:
            return [Send(asker, answer), Observe("proxy.answered_again")]
        if claim is None or claim.key != key or claim.fence != release.fence:
            if self.confirming is not None:
                hold = HoldKey(release.lock, release.fence, release.session)
                return self.confirming.surrender(hold, asker, release)
            text = (
                f"lock {release.lock!r}: fence {release.fence} was shown, which does not hold "
                f"it through node {self.node}"
            )
            return [refuse(asker, release, Reason.NOT_HELD, text)]
        if self.confirming is not None:
            hold = HoldKey(release.lock, release.fence, claim.key.session)
            self.confirming.release(hold, asker, release)
            return self._give(claim)
        done = released(release)
        self.claims.record(claim.key, release.request, done)
        return [*self._give(claim), Send(asker, done), Observe("proxy.released")]

    def given(self, given: Given) -> Effects:
        """Reply to a release that the backend has confirmed."""
        assert self.confirming is not None
        if not given.session:
            return self.confirming.evicted(given)
        confirmed = self.confirming.confirmed(given)
        if confirmed is None:
            return ()
        release, done, effects = confirmed
        if done is not None:
            key = Key(release.session, release.owner, release.lock)
            self.claims.record(key, release.request, done)
        return effects

    def cancel(self, asker: Address, cancel: Cancel) -> Effects:
        """End a wait or a hold, in any state; repeatable."""
        key = Key(cancel.session, cancel.owner, cancel.lock)
        effects: list[Effect] = []
        claim = self.claims.by_key.get(key)
        if claim is not None and claim.request == cancel.request:
            effects += self._give(claim)
        done = cancelled(key, cancel.request)
        if cancel.request >= self.claims.answers.get(key, (0, None))[0]:
            self.claims.record(key, cancel.request, done)
        return [*effects, Send(asker, done)]

    def end(self, session: str) -> Effects:
        """End the waits and holds of ``session``, without a reply for each."""
        effects: list[Effect] = []
        for claim in [c for c in self.claims.by_key.values() if c.key.session == session]:
            effects += self._give(claim)
            self.claims.record(claim.key, claim.request, cancelled(claim.key, claim.request))
        return effects

    def wait_over(self, over: WaitOver, now: Instant) -> Effects:
        """End a wait that timed out, once the backend has named the holder."""
        claim = self.claims.by_ticket.get(over.ticket)
        if claim is None or claim.phase is not Phase.WAITING:
            return ()
        left_ms = (claim.wait_ms or TRY_MS) - ms_between(claim.since, now)
        if left_ms > 0:
            return [nap(claim.ticket, left_ms)]
        self._forget_query(claim)
        look = self._look_for(claim)  # Ask first: the backend must still know the wait.
        claim.phase = Phase.ENDING
        return [*look, Send(self.backend, Give(lock=claim.key.lock, ticket=claim.ticket))]

    def try_look(self, look: TryLook) -> Effects:
        """Check again for a request that does not wait."""
        claim = self.claims.by_ticket.get(look.ticket)
        if claim is None or claim.phase is not Phase.WAITING or claim.query is not None:
            return ()
        return self._look_for(claim)

    def seen(self, seen: Seen, now: Instant) -> Effects | None:
        """Send the refusal that waited for this answer; None if it was for another request."""
        claim = self.endings.pop(seen.query, None)
        if claim is None:
            return None
        claim.query = None
        if claim.phase is Phase.WAITING:  # It does not wait; is another owner ahead?
            ours = (self.node, claim.key.session, claim.key.owner)
            if seen.holder is None or seen.holder[:3] == ours:
                return [Wake(TRY_LOOK_MS, TryLook(ticket=claim.ticket))]
            give = Send(self.backend, Give(lock=claim.key.lock, ticket=claim.ticket))
            claim.phase = Phase.ENDING
            return [give, *self._end(claim, *why_it_ended(self.protocol, claim, seen, now))]
        return self._end(claim, *why_it_ended(self.protocol, claim, seen, now))

    def withdraw(self, claim: LockRequest) -> list[Effect]:
        """End a wait and notify its client."""
        text = f"lock {claim.key.lock!r}: the wait was given up"
        return [*self._give(claim), self._answer_refusal(claim, Reason.CANCELLED, text)]

    def _look_for(self, claim: LockRequest) -> list[Effect]:
        self.looks += 1
        claim.query = self.looks
        self.endings[self.looks] = claim
        return [Send(self.backend, Look(lock=claim.key.lock, query=self.looks))]

    def _forget_query(self, claim: LockRequest) -> None:
        if claim.query is not None:
            self.endings.pop(claim.query, None)
            claim.query = None

    def _give(self, claim: LockRequest) -> list[Effect]:
        """Drop ``claim`` and notify the backend, unless that was done before (D2)."""
        self._forget_query(claim)
        self.claims.drop(claim)
        if claim.phase is Phase.ENDING:
            return []
        return [Send(self.backend, Give(lock=claim.key.lock, ticket=claim.ticket))]

    def _end(self, claim: LockRequest, reason: Reason, detail: str) -> Effects:
        self.claims.drop(claim)
        return [self._answer_refusal(claim, reason, detail), Observe("proxy.refused")]

    def _answer_refusal(self, claim: LockRequest, reason: Reason, detail: str) -> Send:
        no = refused(claim, reason, detail)
        self.claims.record(claim.key, claim.request, no)
        return Send(claim.asker, no)
