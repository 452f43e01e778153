"""The frames of clients that wait to be decoded: whose turn is next, and who is cut off.

One thread serves all clients and the other members. Decoding and handling a frame takes some
100 us, and a turn handles all frames that it took before the node reads its sockets again. So two
things decide how long a request waits: the frames before it, and the length of turns, because a
request crosses about four of them. The queue keeps both short for clients that ask for little,
whatever the others do.

**Owners.** Frames wait by owner: the client or, with keys, its key. So many processes with one key
have one place in the queue, and opening connections gains nothing. Owners take turns: each is
served one frame, or `OWNER_SHARE` envelopes of a large one, and goes last. The frames
of one owner stay in order.

Known owners are served in rounds, each owner once a round. An owner whose queue was
empty comes first in its round, as soon as its frame arrives. So a client that waits for its replies
is not delayed by clients whose queues only grow. Its second frame in one round comes last. Hence a
client waits for at most two frames of each other client. A round ends when the next owner in
`known` has already had its turn in it. Strangers that keep inventing names could prevent that. So
once `CONNECTIONS_MAX` owners have had their turn, `known` goes before `first`.

**Lanes.** Each owner is in one of four lanes. A turn serves them as follows.

    lane    owners                             served in a turn
    ------  ---------------------------------  ------------------------------------------------
    new     those whose client is not known    one first; after `known`, up to NEW_SHARE
    first   those without a turn this round    all that wait, in turn
    known   all others                         all that wait, in turn
    behind  those of which much has waited     BEHIND_SHARE, if their bucket is not in debt

    from     to      when
    -------  ------  --------------------------------------------------------------------------
    new      known   its first frame was taken
    any      behind  more of it waits than a client that awaits its replies would send: half of
                     the frames that may wait, or BACKLOG_BYTES; or it is a client that sends,
                     but does not read its replies (`Connection.silent`)
    behind   known   BEHIND_NS have passed since that was last so, even if it reconnected

A stranger who opens thousands of connections makes `new` long, and a client that sends without end
falls `behind`. Neither delays the owners in `first` and `known` by more than its share of a turn.
The lane `new` has its share in every turn, so that clients that move here from another node get in
quickly. One of them goes first, so that they are served however long `known` is.

**The bucket.** A share of each turn would still make all turns longer. So the owners behind have a
bucket of the node's time. Each turn that serves them, its sync of the disk included, is paid from
it. Between such turns it earns a quarter of the time, up to zero. So a turn of 2 ms costs a pause
of 8 ms, and they have a fifth of all time. In the pause the turns of others are short.
It counts time and not frames, so it needs no figure for the speed of the machine. The pause has a
limit, `PAUSE_NS`: one long turn is more likely the fault of the disk or another process.

The lane has one bucket, not one per owner: without keys a stranger can pose as any number of
clients, and would get the time of as many buckets.

**Alone.** The bucket and the share protect others. If none in other lanes waits, and none was
served for `SHARED_NS`, those behind take whole turns, which gives the most throughput. Where
all clients send as much as they can, all are behind, and take turns as equals. A client whose
threads wait for their replies is never behind, however many turns it fills.

**Bounds.** A frame is dropped when `CLIENT_FRAMES_MAX` (of a key `KEY_FRAMES_MAX`) or
`CLIENT_WAITING_MAX` bytes of its owner wait, or `WAITING_MAX` of all. If its sender does not read,
an eighth of the frames is the limit. Clients send again what is
not answered. A sender of which `FLOOD_FRAMES` are dropped within a second does not listen: `Floods`
closes its connection, and for `CLOSED_S` what comes under its routing id is dropped unread.

Source: J. Nagle, "On packet switches with infinite storage", RFC 970, for turns by owner; Toke
Hoeiland-Joergensen et al., "The Flow Queue CoDel packet scheduler", RFC 8290, section 4.2, for
those that come first.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from time import perf_counter_ns

from msgspec import Struct
from msgspec.structs import replace

from fencelock.transport.connections import Connection
from fencelock.transport.descriptors import CONNECTIONS_MAX
from fencelock.transport.frame import Frame

CLIENT_FRAMES_MAX = 256
"""Limit of waiting frames of one owner; more are dropped, and the clients send them again."""

KEY_FRAMES_MAX = 4_096
"""The same limit with keys: many processes may share a key, and send at once."""

SILENT_PART = 8
"""The part of both limits for an owner that does not read its replies: one in so many frames."""

CLIENT_WAITING_MAX = 2 << 20
"""Limit of waiting frames of one owner (bytes, 2 MiB)."""

WAITING_MAX = 32 << 20
"""Limit of waiting frames of all clients (bytes, 32 MiB)."""

OWNER_SHARE = 32
"""Envelopes of one owner that are taken at once while others wait."""

NEW_SHARE = 16
"""Envelopes of new clients that are taken in one turn."""

BEHIND_SHARE = 16
"""Envelopes of all owners behind that are taken in one turn while there are others."""

BACKLOG_BYTES = 32 << 10
"""Waiting bytes at which an owner is behind (32 KiB): some 300 requests."""

BEHIND_NS = 1_000_000_000
"""How long it stays behind (ns, 1 s)."""

SHARED_NS = 100_000_000
"""Time for which a client that was served counts as present (ns, 100 ms)."""

EARNING = 4
"""The bucket earns one part in so many of the time in which no owner behind is served."""

PAUSE_NS = 10_000_000
"""Longest pause of owners behind (ns, 10 ms)."""

FLOOD_FRAMES = 2_000
"""A connection is closed at so many dropped frames in a second."""

WARNED_FRAMES = FLOOD_FRAMES // 2
"""Dropped frames at which the sender is notified."""

CLOSED_S = 5.0
"""Time for which frames under the routing id of a connection that was closed are dropped (s)."""

CLOSE_AGAIN_S = 0.1
"""Shortest interval between two closings of connections under one routing id (s): frames that were
read before the first may follow it."""

MUTED_S = 1.0
"""Time for which frames of a sender are discarded unread after one that no version of ours
sends (s)."""

SENDERS_MAX = 4_096
"""Limit of owners that were behind, and of senders that are counted."""


class QueuedFrame(Struct, eq=False):
    """A frame as it arrived, or the rest of one that was decoded."""

    connection: Connection
    raw: bytes
    rest: Frame | None = None


class Owner(Struct, eq=False):
    """An owner of which frames wait."""

    name: str
    frames: deque[QueuedFrame]
    lane: Lane
    size: int = 0
    """Their bytes."""


class Lane(OrderedDict[str, Owner]):
    """Owners that take turns, in the order in which they came, by name.

    Attributes:
        room: envelopes that may still be taken in this turn of the node.

    """

    room = 0


class Bucket:
    """The time of the node that a lane may use, see the module.

    Attributes:
        tokens: the time that was earned and not spent (ns); 0 or, in debt, less.

    """

    def __init__(self) -> None:
        self.tokens = 0
        self._at = 0
        self._spends = False

    def settle(self, now: int) -> None:
        """Pay for the time until ``now`` (ns) if a turn was to be paid, else earn."""
        passed, self._at = now - self._at, now
        if self._spends:
            self.tokens -= min(passed, PAUSE_NS // EARNING)
            self._spends = False
        else:
            self.tokens = min(0, self.tokens + passed // EARNING)

    def spend(self) -> None:
        """Pay for the present turn, at its end."""
        self._spends = True


class ClientQueue:
    """The waiting frames of clients, see the module.

    Args:
        known: the clients that are not new, a live view; without it none is new.
        most: limit of waiting frames of one owner.
        clock: reads a clock (ns).

    Attributes:
        owners: the owners of which frames wait, by name; read only.
        size: the bytes that wait.

    """

    def __init__(
        self,
        known: Collection[str] | None = None,
        most: int = CLIENT_FRAMES_MAX,
        clock: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self.owners: dict[str, Owner] = {}
        self.size = 0
        self._clients = known
        self._most = most
        self._clock = clock
        self._new, self._first, self._known, self._behind = Lane(), Lane(), Lane(), Lane()
        self._had_turn = set[str]()
        """The owners that had their turn in this round."""
        self._behind_until: dict[str, int] = {}
        self._bucket = Bucket()
        self._now = 0
        self._shared_until = 0
        """The time until which somebody in another lane counts as present (ns)."""
        self._new_first = False
        """Whether no new client was served in this turn."""

    def put(self, connection: Connection, raw: bytes) -> bool:
        """Add a frame of the connection's owner; return False if there is no room for it.

        If the sender is silent, fewer frames may wait, and the owner falls behind, unless it is a
        key.
        """
        size, most, name = len(raw), self._most, connection.owner
        if connection.silent:
            most //= SILENT_PART
        owner = self.owners.get(name)
        if self.size + size > WAITING_MAX:
            return False
        if owner is None:
            if len(self.owners) >= CONNECTIONS_MAX:
                return False
            is_known = self._clients is None or connection.name in self._clients
            owner = self.owners[name] = Owner(name, deque(), self._new)
            self._enter(owner, is_known=is_known)
        elif owner.size + size > CLIENT_WAITING_MAX or len(owner.frames) >= most:
            return False
        owner.frames.append(QueuedFrame(connection, raw))
        owner.size += size
        self.size += size
        # Other clients with the same key may read their replies.
        silent = connection.silent and name == connection.name
        if silent or owner.size >= BACKLOG_BYTES or len(owner.frames) >= self._most // 2:
            self._fall_behind(owner)
        return True

    def serve(
        self, most: int, within_ns: int, opened: Callable[[Connection, bytes], Frame | None]
    ) -> tuple[list[tuple[Connection, Frame]], int]:
        """Take frames in turn.

        Args:
            most: envelopes to take; a frame that is dropped counts as one.
            within_ns: no frame is begun after this time.
            opened: returns the frame in the bytes that came over a connection; None to drop it.

        Returns:
            The frames, of large ones only some envelopes, and how much of ``most`` was used.

        """
        served, left = list[tuple[Connection, Frame]](), most
        now = self._now = self._clock()
        ends = now + within_ns
        self._new_first = True
        self._first.room = self._known.room = most
        self._new.room = min(NEW_SHARE, max(1, most // 2))
        if self._behind:
            self._bucket.settle(now)
            share = 0 if self._bucket.tokens < 0 else BEHIND_SHARE
            self._behind.room = most if self._is_alone() else share
        while left > 0 and (lane := self._next_lane()) is not None:
            owner, waiting = self._take(lane)
            connection, taken = waiting.connection, 1
            frame = waiting.rest or opened(connection, waiting.raw)
            if frame is not None:
                room = min(left, lane.room, OWNER_SHARE if self.owners else left)
                envelopes = frame.envelopes
                if len(envelopes) > room:
                    rest = replace(frame, envelopes=envelopes[room:])
                    self._put_back(owner, QueuedFrame(connection, b"", rest))
                    frame = replace(frame, envelopes=envelopes[:room])
                taken = len(frame.envelopes) or 1
                served.append((connection, frame))
            left -= taken
            lane.room -= taken
            if not self.owners or self._clock() >= ends:
                break
        return served, most - left

    def _next_lane(self) -> Lane | None:
        """Return the lane of which an owner has its turn next, None if no frame is due."""
        new, first, known, behind = self._new, self._first, self._known, self._behind
        if new and new.room > 0 and (self._new_first or not (first or known)):
            self._new_first = False
            return new
        if first and not (known and len(self._had_turn) >= CONNECTIONS_MAX):
            return first
        if known:
            return known
        return behind if behind and behind.room > 0 else None

    def _take(self, lane: Lane) -> tuple[Owner, QueuedFrame]:
        """Take the next frame of the next owner of ``lane``."""
        had_turn = self._had_turn
        if lane is not self._behind:
            self._shared_until = self._now + SHARED_NS
        elif not self._is_alone():
            self._bucket.spend()
        name, owner = lane.popitem(last=False)
        if lane is not self._behind:
            is_next_round = lane is self._known and name in had_turn
            if is_next_round or (len(had_turn) >= CONNECTIONS_MAX and not self._known):
                had_turn.clear()
            had_turn.add(name)
        waiting = owner.frames.popleft()
        size = len(waiting.raw)
        owner.size -= size
        self.size -= size
        if owner.frames:
            self._enter(owner)
        else:
            del self.owners[name]
        return owner, waiting

    def _put_back(self, owner: Owner, rest: QueuedFrame) -> None:
        """Make the rest of a frame that was taken the next one of ``owner``, after others' turns.

        Only its envelopes count then, and not its bytes.
        """
        owner.frames.appendleft(rest)
        if owner.name not in self.owners:
            self.owners[owner.name] = owner
            self._enter(owner)

    def pause_ns(self) -> int:
        """Return how soon a waiting frame is due (ns)."""
        if self._new or self._first or self._known:
            return 0
        now = self._now = self._clock()
        self._bucket.settle(now)
        return 0 if self._is_alone() else -self._bucket.tokens * EARNING

    def _is_alone(self) -> bool:
        """Return whether only owners behind are present."""
        others = self._new or self._first or self._known
        return self._now >= self._shared_until and not others

    def _enter(self, owner: Owner, *, is_known: bool = True) -> None:
        """Let ``owner`` wait for its turn."""
        name = owner.name
        lane = self._known if name in self._had_turn else self._first
        if not is_known:
            lane = self._new
        until = self._behind_until.get(name) if self._behind_until else None
        if until is not None:
            if self._now < until:
                lane = self._behind
            else:
                del self._behind_until[name]
        owner.lane = lane
        lane[name] = owner

    def _fall_behind(self, owner: Owner) -> None:
        until = self._behind_until
        until[owner.name] = self._clock() + BEHIND_NS
        if len(until) > SENDERS_MAX:
            del until[next(iter(until))]
        if owner.lane is not self._behind:
            del owner.lane[owner.name]
            owner.lane = self._behind
            self._behind[owner.name] = owner


@dataclass(slots=True)
class Sender:
    """The dropped frames of a sender."""

    dropped: int = 0
    """Frames in this second."""
    ends: float = 0.0
    """Its end (s)."""
    connection: Connection | None = None
    """That of the first of these frames."""
    muted_until: float = 0.0
    closed_until: float = 0.0
    """Its frames are dropped until both (s)."""


class Floods:
    """Counts dropped frames by routing id, closes connections, and mutes senders.

    A routing id contains the boot of its process, so a sender that does not know it cannot have
    another muted.

    Attributes:
        senders: those of which frames were dropped; read only.

    """

    def __init__(self) -> None:
        self.senders: OrderedDict[bytes, Sender] = OrderedDict()

    def note(self, connection: Connection) -> int:
        """Count a dropped frame; return how many there were in this second, 0 if it was closed.

        For `CLOSED_S` after that, half as many close the next connection: frames of the former one
        may still arrive, and seem to come over another one that has its descriptor by then.
        """
        now, one = time.monotonic(), self._sender(connection)
        if now >= one.ends:
            one.dropped = FLOOD_FRAMES // 2 if now < one.closed_until else 0
            one.ends, one.connection = now + 1.0, connection
        one.dropped += 1
        if one.dropped != FLOOD_FRAMES + 1:
            return one.dropped
        one.ends = now + CLOSE_AGAIN_S
        if now >= one.closed_until:
            one.closed_until = now + CLOSED_S
        if one.connection is connection:
            connection.end()
        return 0

    def mute(self, connection: Connection) -> None:
        self._sender(connection).muted_until = time.monotonic() + MUTED_S

    def is_muted(self, connection: Connection) -> bool:
        one = self.senders.get(connection.identity)
        return one is not None and time.monotonic() < max(one.muted_until, one.closed_until)

    def _sender(self, connection: Connection) -> Sender:
        one = self.senders.setdefault(connection.identity, Sender())
        self.senders.move_to_end(connection.identity)
        if len(self.senders) > SENDERS_MAX:
            self.senders.popitem(last=False)
        return one
