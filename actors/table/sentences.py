"""The sentences about what the table refused or took, for the clients of the proxy that answers.

Every refusal says the value, the limit, and what to do next.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from fencelock.actors.api.handover import Attach
from fencelock.actors.api.lock_message import HAVE_DEADLINES, Acquire, HoldLost, Refused, Renew
from fencelock.actors.api.name import kind_of, quoted, titled, without_secret
from fencelock.actors.api.refusal import Cause, Obstacle, Why
from fencelock.actors.api.request import Request
from fencelock.actors.api.retained import AcquireRetained
from fencelock.actors.api.rwlock import RWLOCK
from fencelock.actors.api.semaphore import SEMAPHORE
from fencelock.actors.api.session_message import CloseReason, Ended
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.fault import INTERNAL_TEXT
from fencelock.actors.table.deadline import check_duration, durations_of
from fencelock.actors.table.retained import check_retained
from fencelock.actors.table.rules import OBJECT_RECORDS

SKIPPED = (
    "an operator skipped this command, because a bug in fencelock makes it damage the table: "
    "nothing was done. Sending it again gives the same result"
)

_LISTED = " and ".join((", ".join([*OBJECT_RECORDS][:-1]), [*OBJECT_RECORDS][-1]))
"""The kinds of objects that nobody can hold."""

CHARGED = {
    "entries": ("entries of maps", 'delete some ("fencelock map delete")'),
    "bytes": ("bytes in entries of maps", 'delete entries ("fencelock map delete")'),
    "objects": (
        _LISTED,
        'count latches down, or delete some ("fencelock latch delete")',
    ),
    "claims": (
        "holds and waits",
        "release locks, give up waits, or delete holds that clients left "
        '("fencelock holds delete")',
    ),
    "sessions": ("open sessions", "close clients, or let their sessions expire"),
}
"""The name of each charge, and what its owner can do about it."""

EXCESS = {
    Cause.TOO_FEW: "{0} permits were requested, this owner has {1} under fence {2}",
    Cause.TOO_MANY: "{0} permits were released, {1} are held under fence {2}",
}
RWLOCK_EXCESS = {
    Cause.TOO_FEW: "this owner holds it for reading, under fence {2}: release it before you "
    "acquire it for writing, since two readers that do not would wait for each other forever",
    Cause.TOO_MANY: "it is held for reading under fence {2}, so there is nothing to downgrade",
}
SENTENCES = {
    Cause.OBSTRUCTED: "{seen}",
    Cause.TIMED_OUT: "waited {0} ms; {seen}",
    Cause.GIVEN_UP: "the wait was given up",
    Cause.TAKEN: "taken by {quoted}",
    Cause.DEADLINE: "taken away when its duration and its grace were over",
    Cause.LOST: "this owner has lost it; {seen}",
    Cause.WRONG_FENCE: "fence {0} was shown, which does not hold it; {seen}",
    Cause.GUARD: "nothing was changed: {guard} is not held under fence {0}; {seen}",
    Cause.NO_DEADLINE: f"this hold has no deadline; {HAVE_DEADLINES}",
    Cause.LATER_REQUEST: "its session has sent a later request, so nothing is done now",
    Cause.AT_LIMIT: "this owner is at its limit: held {0} times under fence {1}, {2} are allowed",
    Cause.PARTY_LEFT: "generation {0} of {1} parties is broken: a party stopped waiting, or its "
    "session ended",
    Cause.PARTY_DID_NOT_WAIT: "generation {0} of {1} parties is broken: a party did not wait",
    Cause.DELETED: "it was deleted by {text}",
    Cause.NO_SESSION: "session {quoted} is not open: it has ended, or was never opened",
    Cause.SESSION_CLAIMS: "{0} holds and waits, a session may have {1}",
    Cause.SESSION_WAITS: "{0} waits, a session may have {1}",
    Cause.QUEUE: "{0} waits for {quoted}, an object may have {1}",
    Cause.CLAIMS: "{0} holds and waits in all, {1} are allowed",
    Cause.SESSIONS: "{0} sessions are open, no more are allowed",
    Cause.OBJECTS: f"this cluster has {{0}} {_LISTED}, {{1}} are allowed",
    Cause.ENTRIES: "the maps of this cluster have {0} entries, {1} are allowed",
    Cause.MAP_BYTES: "the maps of this cluster have {0} bytes of names, keys and values, {1} are "
    "allowed",
    Cause.HELD_AGAIN: "its owner holds it {0} times: only a lock that is held once can be detached",
    Cause.NOT_DETACHED: "this token does not attach it: it was used, or its time is over, or the "
    "lock was taken by force; {seen}",
}
"""The sentences that follow the name of the object. Numbers are those of `Why.numbers`."""

WHY_CLOSED = {
    CloseReason.GRACEFUL: "its client ended it",
    CloseReason.EXPIRED: "nothing was received from its client for its TTL",
    CloseReason.FORCED: "an operator ended it",
}
"""The reason why a session has ended."""


def _arguments(sentence: str) -> tuple[int, int, bool]:
    numbers = [number for number in range(3) if f"{{{number}}}" in sentence]
    return len(numbers), int("{text}" in sentence or "{quoted}" in sentence), "{seen}" in sentence


ARGUMENTS: dict[Cause, tuple[int, int, bool]] = {
    **{cause: _arguments(sentence) for cause, sentence in {**SENTENCES, **EXCESS}.items()},
    Cause.INVALID: (0, 0, False),
    Cause.OTHER_SIZE: (2, 0, False),
    Cause.SESSION_ENDED: (0, 1, False),
    Cause.QUOTA: (3, 2, False),
    Cause.BUG: (0, 1, False),
    Cause.SKIPPED: (0, 0, False),
}
"""The number of numbers and texts of a refusal by its cause, and whether it has an obstacle."""

_KINDS = {one.KIND: one for one in OBJECT_RECORDS.values()}

Worded = TypeVar("Worded", bound=Refused | HoldLost | Ended)


def is_sound(why: Why) -> bool:
    """Return whether a refusal has the arguments of its cause; what a member sends may not."""
    given = len(why.numbers), len(why.texts), why.obstacle is not None
    if why.cause is Cause.DELETED and given == (2, 1, False):
        return True  # Of a barrier.
    if why.cause is Cause.QUOTA and why.texts[1:2] and why.texts[1] not in CHARGED:
        return False
    return ARGUMENTS.get(why.cause) == given


def worded(outcome: Worded, request: Request | None = None) -> Worded:
    """Return an outcome of the table with its text, as a client gets it.

    ``request`` is the request that it answers, if that is known. Names of sessions appear without
    their secrets.
    """
    if isinstance(outcome, Ended):
        handle = quoted(without_secret(outcome.session))
        text = f"session {handle} has ended: {WHY_CLOSED[outcome.reason]}"
        text = f"{text}: {quoted(outcome.operator)}" if outcome.operator else text
        return replace(outcome, detail=text)
    if outcome.why is None:
        return outcome
    if isinstance(outcome, HoldLost):
        sentence = _sentence(outcome.why, outcome.lock)
        if outcome.why.cause is Cause.LOST:
            text = f"{titled(outcome.lock)}: fence {outcome.fence}: {sentence}"
        else:
            taken = sentence.removeprefix("it was ")
            text = f"{titled(outcome.lock)}: the hold under fence {outcome.fence} was {taken}"
    else:
        text = without_secret(_refusal(outcome, outcome.why, request))
    return replace(outcome, detail=text, why=None)


def _refusal(refused: Refused, why: Why, request: Request | None) -> str:
    lock = refused.lock
    match why.cause:
        case Cause.INVALID:
            return _why_invalid(request)
        case Cause.SESSION_ENDED:
            return f"session {quoted(why.texts[0])} does not exist (any more); open one"
        case Cause.OTHER_SIZE:
            size, other = why.numbers
            one = _KINDS.get(kind_of(lock))
            has = ("{} permits" if one is None else one.SIZE).format(size)
            return f"{titled(lock)} has {has}; this client asked for one with {other}"
        case Cause.SKIPPED:
            return SKIPPED
        case Cause.BUG:
            text = INTERNAL_TEXT.format(where="the table", what=why.texts[0])
        case Cause.TAKEN | Cause.DEADLINE:
            text = f"this owner has lost it; {_sentence(why, lock)}"
        case Cause.DELETED if why.numbers:
            broken = "generation {} of {} parties is broken".format(*why.numbers)
            text = f"{broken}: {_sentence(why, lock)}"
        case _:
            text = _sentence(why, lock)
    return f"{titled(lock)}: {text}" if lock else text


def _why_invalid(request: Request | None) -> str:
    """Return what the check of a request says, as it said in the table."""
    try:
        if request is not None:
            request.check()
        if isinstance(request, Acquire | Attach):
            durations_of(request)
        if isinstance(request, AcquireRetained):
            check_retained(request)
        if isinstance(request, Renew) and request.hold_ms:
            check_duration(request.lock, "duration", request.hold_ms)
    except InvalidRequestError as error:
        return str(error)
    return "a field of the request exceeds its limits"


def _sentence(why: Why, lock: str) -> str:
    if why.cause is Cause.QUOTA:
        (key, what), (has, most, more) = why.texts, why.numbers
        return _over_quota(key, what, has, most, more)
    excess = RWLOCK_EXCESS if kind_of(lock) == RWLOCK else EXCESS
    template = excess.get(why.cause) or SENTENCES[why.cause]
    seen, guard = "", ""
    if why.obstacle is not None:
        guards = why.cause is Cause.GUARD
        guard = titled(why.obstacle.lock)
        seen = _state(why.obstacle, why.obstacle.lock if guards else lock)
    text = why.texts[0] if why.texts else ""
    return template.format(*why.numbers, seen=seen, guard=guard, text=text, quoted=quoted(text))


def _over_quota(key: str, what: str, has: int, most: int, more: int) -> str:
    name = key or "--no-key"
    who = f"key {quoted(key)} has" if key else "clients without a key have"
    wants = f" and asks for {more} more" if more > 1 else ""
    things, advice = CHARGED[what]
    return (
        f"{who} {has} {things}{wants}, and the quota {what} is {most}: {advice}, or let an "
        "operator raise the quota "
        f'("fencelock keys quota {name} --{what} N")'
    )


def _state(seen: Obstacle, about: str) -> str:
    """Return the state of an object, after its name if the refusal is ``about`` several locks."""
    lock, kind = seen.lock, kind_of(seen.lock)
    one = _KINDS.get(kind)
    if one is not None and seen.capacity:
        return one.STATE.format_map(seen._asdict())
    if not seen.holders:
        held = "nobody holds it"
    elif kind == SEMAPHORE:
        held = f"{seen.capacity - seen.free} of {seen.capacity} permits are held"
    elif seen.free:
        held = f"{seen.holders} owners read"
    else:
        who = f"{quoted(seen.owner)} of {quoted(seen.session)}"
        if seen.label and not seen.owner.startswith(f"{seen.label}#"):  # "host:17#3" has it.
            who = f"{seen.label} ({who})"
        writes = ", for writing" if kind == RWLOCK else ""
        held = f"held by {who} under fence {seen.fence}{writes}"
    one_of_several = lock != about
    if seen.waiting and (kind or one_of_several or not seen.holders):
        held = f"{held}, {seen.waiting} in its queue"
    return f"{titled(lock)}: {held}" if one_of_several else held
