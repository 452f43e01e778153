"""Requests that the backend must confirm before the proxy answers the client."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from fencelock.actors.api.message import Reason, Release, Released
from fencelock.actors.api.session_message import End, Ended, Evict, Evicted
from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.message import Address
from fencelock.actors.proxy.message import EndHolds, Freeing, Given, HoldsEnded, Surrender
from fencelock.actors.proxy.wording import refuse, released

PENDING_MAX = 100_000
"""Maximum requests of one kind that wait for the backend. The oldest is dropped first: a client
that still waits for its reply repeats it."""

K = TypeVar("K")
V = TypeVar("V")


class HoldKey(NamedTuple):
    """One hold, and the session that a request names as its holder."""

    lock: str
    fence: int
    session: str


class Confirming:
    """Releases, evictions and session ends sent to a backend that keeps holds by session.

    A client that was told that its release is done may at once send a request through another
    node, or exit. So the reply waits until the backend has confirmed.

    Args:
        backend: receives `Surrender` and `EndHolds`, and answers `Given` and `HoldsEnded`.

    """

    def __init__(self, backend: Address) -> None:
        self.backend = backend
        self.releases: dict[HoldKey, tuple[Address, Release]] = {}
        self.evictions: dict[HoldKey, tuple[Address, Evict]] = {}
        self.ends: dict[str, tuple[Address, End]] = {}

    def release(self, key: HoldKey, asker: Address, release: Release) -> None:
        """Reply to ``asker`` once the release of ``key`` is confirmed."""
        _remember(self.releases, key, (asker, release))

    def surrender(self, key: HoldKey, asker: Address, release: Release) -> Effects:
        """End a hold that belongs to no claim of this node."""
        self.release(key, asker, release)
        return [Send(self.backend, Surrender(lock=key.lock, fence=key.fence, session=key.session))]

    def evict(self, asker: Address, evict: Evict) -> Effects:
        """End any session's hold for an operator."""
        _remember(self.evictions, HoldKey(evict.lock, evict.fence, ""), (asker, evict))
        return [Send(self.backend, Surrender(lock=evict.lock, fence=evict.fence, session=""))]

    def end(self, asker: Address, end: End) -> Effects:
        """End everything that a session holds."""
        _remember(self.ends, end.session, (asker, end))
        return [Send(self.backend, EndHolds(session=end.session))]

    def ended(self, word: HoldsEnded) -> Effects:
        """Reply to the client that ended a session."""
        asked = self.ends.pop(word.session, None)
        if asked is None:
            return []
        asker, end = asked
        text = "what it held was given back"
        return [Send(asker, Ended(session=end.session, detail=text, request=end.request))]

    def evicted(self, given: Given) -> Effects:
        """Reply to an operator with the outcome of an eviction."""
        asked = self.evictions.pop(HoldKey(given.lock, given.fence, ""), None)
        if asked is None:
            return []
        asker, evict = asked
        if given.holder is None:
            return [refuse(asker, evict, Reason.NOT_HELD, _not_held(given))]
        evicted = Evicted(
            lock=given.lock,
            fence=given.fence,
            holder=given.holder,
            session=evict.session,
            request=evict.request,
        )
        return [Send(asker, evicted), Observe("proxy.evicted")]

    def confirmed(self, given: Given) -> tuple[Release, Released | None, Effects] | None:
        """Return the release that ``given`` confirms, its reply on success, and the effects."""
        asked = self.releases.pop(HoldKey(given.lock, given.fence, given.session), None)
        if asked is None:
            return None
        asker, release = asked
        match given.outcome:
            case Freeing.FREED:
                done = released(release)
                return release, done, [Send(asker, done), Observe("proxy.released")]
            case Freeing.NOT_HELD:
                no = refuse(asker, release, Reason.NOT_HELD, _not_held(given))
            case Freeing.TAKEN:
                text = f"lock {given.lock!r}: an operator took it from fence {given.fence}"
                no = refuse(asker, release, Reason.OWNERSHIP_LOST, text)
        return release, None, [no]


def _not_held(given: Given) -> str:
    return f"lock {given.lock!r}: fence {given.fence} does not hold it, says the lock server"


def _remember(memory: dict[K, V], key: K, value: V) -> None:
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > PENDING_MAX:
        del memory[next(iter(memory))]
