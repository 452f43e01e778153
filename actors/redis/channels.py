"""The channels of Redisson's locks: a subscription is a place in the queue of its lock.

A client of Redisson that does not get a lock subscribes to its channel, waits for a message, and
tries again. Redis publishes the message with each unlock. Here the door waits in the queue of the
lock as long as the subscription lasts, with native clients and all others. When the turn comes, the
lock is reserved, and the message is sent. It does not matter how the lock became free.

After each turn the subscription has a new place, since several threads may wait behind it. Who does
not come when its turn comes costs the lock `RESERVED_MS`; one that missed `MISSED_MAX` turns in a
row has its next place only after a while.

Source: ``RedissonLock.java``, ``PublishSubscribe.java`` of https://github.com/redisson/redisson.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from fencelock.actors.api.lock_message import Cancel, Refused
from fencelock.actors.api.redis import AwaitKey, ChangeKeys, KeyAction, KeysChanged, lock_in
from fencelock.actors.effect import Effect, Send
from fencelock.actors.message import Address
from fencelock.actors.redis.command import MINE, RESERVED_MS, Answer, CommandError, key_of, shown
from fencelock.actors.redis.script import TURN

CHANNEL = TURN.decode()
"""The beginning of the names of channels."""

UNLOCKED = b"0"
"""The message that a lock is free."""

EACH_MAX = 16
"""Limit of the subscriptions of one connection. Redisson has 5."""

ALL_MAX = 1_024
"""Limit of the subscriptions of a door: if all end at once, the node is busy for some 50 ms."""

MISSED_MAX = 3
"""The turns in a row that a subscription may miss before it has to wait for its next place."""

Number = Callable[[int, AwaitKey | ChangeKeys], AwaitKey | ChangeKeys]
"""Completes a request of a connection, with a number of its own."""


@dataclass(slots=True, eq=False)
class Subscription:
    """A subscription of a connection to a channel."""

    connection: int
    channel: bytes
    key: str
    request: AwaitKey | None = None
    """Its place in the queue, None while it has none, and once the subscription has ended."""
    fence: int = 0
    """The fence of its last turn, 0 once that was taken at this door."""
    missed: int = 0


def awaiting(channel: bytes) -> AwaitKey:
    """Return the request that waits for the lock of a channel; refuse other channels."""
    key = lock_in(key_of(channel), CHANNEL)
    if key is None:
        raise CommandError(
            f"ERR SUBSCRIBE is for channels of Redisson's locks, {CHANNEL}:{{NAME}}, and not for "
            f"{shown(channel)}; see docs/redis.md"
        )
    return AwaitKey(keys=(key,), value=TURN, ttl_ms=RESERVED_MS)


def cancel_of(request: AwaitKey) -> Cancel:
    return Cancel(lock=request.lock, session="", owner=request.owner, request=request.request)


class Channels:
    """The subscriptions of all connections of a door.

    Args:
        session: the role that passes requests to the cluster.
        number: completes the requests.

    """

    def __init__(self, session: Address, number: Number) -> None:
        self._session = session
        self._number = number
        self._of: dict[int, dict[bytes, Subscription]] = {}
        """By connection and channel."""
        self._waiting: dict[int, Subscription] = {}
        """Those with a place, by the number of its request. One that ended while it had a place is
        here until it is known what became of that."""
        self._turns: dict[int, Subscription] = {}
        """Those whose last turn was perhaps not taken yet, by its fence."""
        self._owners: dict[int, int] = {}
        """The owner of each request in flight, by the request's number."""
        self._idle: list[int] = []
        """Owners that have been used, and have no request in flight."""

    def of(self, connection: int) -> list[bytes]:
        return list(self._of.get(connection, ()))

    def check_room(self, connection: int, channels: list[bytes]) -> None:
        """Refuse more subscriptions than one connection, or all of them, may have."""
        own = self._of.get(connection, {})
        more = len(set(channels).difference(own))
        if len(own) + more > EACH_MAX:
            raise CommandError(f"ERR a connection has at most {EACH_MAX} subscriptions here")
        if more + sum(map(len, self._of.values())) > ALL_MAX:
            raise CommandError(
                f"ERR the clients of this node have {ALL_MAX} subscriptions, the most: use another"
            )

    def subscribe(self, connection: int, channel: bytes) -> list[Effect]:
        of = self._of.setdefault(connection, {})
        if channel in of:
            return []
        one = of[channel] = Subscription(connection, channel, awaiting(channel).keys[0])
        return self._wait(one)

    def unsubscribe(self, connection: int, channel: bytes | None = None) -> list[Effect]:
        of = self._of.get(connection, {})
        effects: list[Effect] = []
        for name in list(of) if channel is None else [channel]:
            one = of.pop(name, None)
            if one is None:
                continue
            if one.request is not None:
                effects.append(Send(self._session, cancel_of(one.request)))
                one.request = None
            if self._turns.pop(one.fence, None) is not None:
                effects.append(self._give_back(one))
        if not of:
            self._of.pop(connection, None)
        return effects

    def taken(self, fence: int) -> None:
        """Note that a client has come whose turn had that fence."""
        one = self._turns.pop(fence, None)
        if one is not None:
            one.missed = 0

    def answered(self, answer: Answer | Refused) -> tuple[Subscription | None, list[Effect]]:
        """Return the subscription to which the message is sent now, if the answer is for one.

        A place that was refused is asked for again with the next `retry`.
        """
        number = answer.request
        owner = self._owners.pop(number, None)
        if owner is None:
            return None, []
        self._idle.append(owner)
        one = self._waiting.pop(number, None)
        if one is None:
            return None, []
        ended, one.request = one.request is None, None
        if not isinstance(answer, KeysChanged):
            return None, []
        if ended:
            return None, [self._give_back(one)]
        self._turns.pop(one.fence, None)
        one.fence = answer.keys[0].fence
        self._turns[one.fence] = one
        one.missed += 1
        return one, self._wait(one) if one.missed <= MISSED_MAX else []

    def retry(self) -> list[Effect]:
        """Let those have a place that have none."""
        resting = (one for of in self._of.values() for one in of.values() if one.request is None)
        return [effect for one in resting for effect in self._wait(one)]

    def _wait(self, one: Subscription) -> list[Effect]:
        send = self._send(one, awaiting(one.channel))
        assert isinstance(send.message, AwaitKey)
        one.request = send.message
        self._waiting[send.message.request] = one
        return [send]

    def _give_back(self, one: Subscription) -> Send:
        """Let the next one have a turn that nobody will take."""
        ends = ChangeKeys(keys=(one.key,), action=KeyAction.DELETE, states=MINE, expected=TURN)
        return self._send(one, ends)

    def _send(self, one: Subscription, request: AwaitKey | ChangeKeys) -> Send:
        owner = self._idle.pop() if self._idle else len(self._owners)
        named = self._number(one.connection, replace(request, owner=f"s{owner}"))
        self._owners[named.request] = owner
        return Send(self._session, named)
