"""Messages that only the replicated log has, and the records of a snapshot of its table.

Most commands of the log are the requests of clients (`fencelock.actors.api.request.Command`), and
most outcomes are the replies to them. A command carries no time: the log stamps its batch. An
owner does one thing at a time with a lock: it begins the next request about the same lock after
it has received the reply to the last, or to the `Cancel` of it. Requests about other locks are
independent. One command may have outcomes for others too: a release has one for the next holder.

Tags 0x83, 0x95 and 0x9a; 0x80 to 0x82, 0x84 to 0x87, 0x90 to 0x94 and 0x96 to 0x99 are retired.
"""

from typing import NamedTuple, final

from fencelock.actors.api.account import Quota
from fencelock.actors.api.barrier import BarrierPassed
from fencelock.actors.api.changes import Change
from fencelock.actors.api.counter import CounterChanged
from fencelock.actors.api.latch import CountedDown, LatchPassed
from fencelock.actors.api.lock_message import HoldLost, LockReply, Reason
from fencelock.actors.api.map import EntryChanged
from fencelock.actors.api.name import check_number
from fencelock.actors.api.operator_message import Evicted
from fencelock.actors.api.pool import PermitsGiven, PermitsTaken
from fencelock.actors.api.redis import KeysChanged
from fencelock.actors.api.refusal import Why
from fencelock.actors.api.request import Command, Outcome
from fencelock.actors.api.retained import Recall
from fencelock.actors.api.semaphore import Resized
from fencelock.actors.message import Int64, Message

FENCE_FLOOR_MAX = 1 << 62
"""Half of all fences: even a wrong floor does not use them up."""

LOG_TIME_MS_MAX = 1 << 53
"""Log time ends here, after 285,000 years: a later deadline must still fit the wire format."""

DUE_MS_MAX = 2 * LOG_TIME_MS_MAX
"""No deadline is later: each is at most a hundred years after the log time at which it was set."""


LOG_VERSION = 1
"""The version of the log. A release whose commands members of lower versions would skip, or apply
in another way, raises it by one, and gives it to these commands (`Command.SINCE`). A leader refuses
commands above the lowest version of its members, and a node of a lower version does not join."""


@final
class ExtendSessions(Message, tag=0x83):
    """A new leader leads: no session ends before its full TTL from now. There is no reply.

    The leader cannot know which sessions were kept alive recently. It must be the first command of
    the first batch of a leadership: it takes effect before what falls due by that batch's time.

    Every later fence is above ``fence_floor``, 0 to `FENCE_FLOOR_MAX`. With a date as the
    floor, a group that keeps nothing on disk, and lost everything, continues above its old fences.
    """

    leader: str
    fence_floor: Int64 = 0

    def check(self) -> None:
        check_number("fence_floor", self.fence_floor, 0, FENCE_FLOOR_MAX)


class Queued(LockReply, Outcome, tag=0x95):
    """``owner`` waits for ``lock``; the log has the request, so it need not be repeated.

    It is for the proxy, and no reply to a client, which gets the one that follows.
    """


LogCommand = Command | ExtendSessions

Result = Outcome | HoldLost | Recall
"""All outcomes of commands, or of time. `HoldLost` is for a holder whose lock was taken, and
`Recall` for one whose lock others wait for."""


KeptReply = (
    CountedDown
    | LatchPassed
    | EntryChanged
    | BarrierPassed
    | CounterChanged
    | Resized
    | PermitsTaken
    | PermitsGiven
    | KeysChanged
)
"""All messages that derive from `fencelock.actors.api.object_request.UpdateReply`."""


class TableHead(NamedTuple):
    """The counters of a table, the same in every part of a snapshot."""

    time_ms: Int64
    fence: Int64
    tickets: Int64
    opened: Int64
    extended_ms: Int64
    version: Int64
    """The last version of a change, see `fencelock.actors.table.history.Histories`."""
    forgotten: Int64
    origin: Int64


class SessionRecord(NamedTuple):
    """A `Session`, without its owner states."""

    number: Int64
    name: str
    label: str
    ttl_ms: Int64
    deadline_ms: Int64
    floor: Int64
    recalled: Int64


class LeaseRecord(NamedTuple):
    """The deadline of a hold, in log time; of one without a client, only that and ``watched_ms``.

    ``watched_ms`` is the time for which the table has it among what falls due. That is earlier than
    the deadline if a new leader has moved the deadline since.
    """

    lasts_ms: Int64
    grace_ms: Int64
    renewal: Int64
    deadline_ms: Int64
    replied_hold_ms: Int64
    replied_grace_ms: Int64
    watched_ms: Int64


class HoldRecord(NamedTuple):
    """A `TableHold`."""

    fence: Int64
    label: str
    since_ms: Int64
    request: Int64
    times: Int64
    granted_count: Int64
    amount: Int64
    capacity: Int64
    """The capacity of each object that it holds."""
    lease: LeaseRecord | None
    span: Int64
    """The number of its fences if its session retains it, else 0."""


class WaitRecord(NamedTuple):
    """A `Wait`. Its deadline is log time, so it does not depend on any clock.

    ``hold_ms`` and ``grace_ms`` are those of the hold that it waits for; 0 for no deadline.
    """

    ticket: Int64
    label: str
    since_ms: Int64
    due_ms: Int64 | None
    amount: Int64
    granted_count: Int64
    capacity: Int64
    """The capacity of each object for which it waits; 0 for one that nobody can hold."""
    hold_ms: Int64
    grace_ms: Int64
    span: Int64
    """That of the hold that it waits for."""


class KeyRecord(NamedTuple):
    """The fields that only a hold that belongs to no client has, or the wait of a Redis door."""

    value: bytes
    """Of a detached lock, the digest of the value that attaches it."""
    account: str
    """The name of the key of the cluster that is charged for it."""
    reserved: bool
    """Whether a SET with the same value is still expected."""
    ttl_ms: Int64 | None
    """Of a wait, the time for which the key will be held; None for no deadline. None of a hold."""
    detached_by: str | None = None
    """The owner who detached the lock; None if it is held through a Redis door."""


class ClaimantRecord(NamedTuple):
    """An `OwnerState`; ``session`` is the number of its session.

    Its outcome is in ``freed``, the count left, or in ``denial`` and ``why``.
    """

    session: Int64
    owner: str
    lock: str
    request: Int64
    releasing: bool
    freed: Int64 | None
    denial: Reason | None
    why: Why | None
    lost: Int64
    idle_ms: Int64
    hold: HoldRecord | None
    wait: WaitRecord | None
    locks: tuple[str, ...]
    """The locks of a claim for several, which is held or waits."""
    value: str | None
    """The value of a leader of an election, or of a candidate that waits."""
    key: KeyRecord | None


class LatchRecord(NamedTuple):
    """A `fencelock.actors.table.latch.Latch`, without its waits."""

    lock: str
    began: Int64
    left: Int64
    keep_ms: Int64
    ticket: Int64
    due_ms: Int64 | None
    account: str
    """The name of the key that is charged."""


class BarrierRecord(NamedTuple):
    """A `fencelock.actors.table.barrier.Barrier`, without its waits."""

    lock: str
    parties: Int64
    generation: Int64
    broken: bool
    account: str


class CounterRecord(NamedTuple):
    """A `fencelock.actors.table.counter.Counter`."""

    lock: str
    value: Int64
    account: str


class PoolRecord(NamedTuple):
    """A `fencelock.actors.table.pool.Pool`, without its waits."""

    lock: str
    size: Int64
    taken: Int64
    account: str


ObjectRecord = LatchRecord | BarrierRecord | CounterRecord | PoolRecord
"""The records of objects that nobody can hold."""


class HistoryRecord(NamedTuple):
    """Changes of one object, in order. The next record of the same object has its later changes."""

    lock: str
    since: Int64
    time_ms: Int64
    changes: tuple[Change, ...]


class EntryRecord(NamedTuple):
    """An `fencelock.actors.table.map.Entry`; ``session`` is the number of its session, or 0."""

    map: str
    key: str
    value: bytes
    version: Int64
    session: Int64
    ticket: Int64
    due_ms: Int64 | None
    account: str


class QuotaRecord(NamedTuple):
    """The quota that an operator has set for one key, or for every key."""

    account: str
    quota: Quota


class TablePart(Message, tag=0x9A):
    """Part ``index`` of the ``count`` parts of a snapshot.

    The ``replies`` are the outcomes of owner states whose last request was an `UpdateRequest`.
    """

    index: Int64
    count: Int64
    head: TableHead
    sessions: tuple[SessionRecord, ...]
    owner_states: tuple[ClaimantRecord, ...]
    audit: tuple[Evicted, ...]
    replies: tuple[KeptReply, ...] = ()
    latches: tuple[LatchRecord, ...] = ()
    histories: tuple[HistoryRecord, ...] = ()
    entries: tuple[EntryRecord, ...] = ()
    barriers: tuple[BarrierRecord, ...] = ()
    quotas: tuple[QuotaRecord, ...] = ()
    counters: tuple[CounterRecord, ...] = ()
    pools: tuple[PoolRecord, ...] = ()


TableSnapshot = tuple[TablePart, ...]
"""All parts, in order."""

Record = (
    SessionRecord
    | ClaimantRecord
    | Evicted
    | KeptReply
    | ObjectRecord
    | HistoryRecord
    | EntryRecord
    | QuotaRecord
)
