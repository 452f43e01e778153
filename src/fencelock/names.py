"""The public names of `fencelock`, which imports this module when one of them is first used."""

from fencelock.actors.api.barrier import AwaitBarrier, BarrierPassed
from fencelock.actors.api.changes import Change, ChangesRead, ReadChanges
from fencelock.actors.api.cluster_message import ClusterDown, ClusterUp, Watch
from fencelock.actors.api.counter import AddToCounter, CounterChanged, SetCounter
from fencelock.actors.api.election import Lead
from fencelock.actors.api.handover import Attach, Detach
from fencelock.actors.api.latch import AwaitLatch, CountDown, CountedDown, LatchPassed
from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.map import (
    DeleteEntry,
    EntryChanged,
    EntryList,
    EntrySeen,
    GetEntry,
    ListEntries,
    PutEntry,
)
from fencelock.actors.api.membership_message import (
    ChangeMembers,
    MemberAction,
    MembersChanged,
    MembersRead,
    NodeReport,
    NodeRole,
    ReadMembers,
)
from fencelock.actors.api.message import (
    Absence,
    Acquire,
    Cancel,
    Cancelled,
    Contender,
    Describe,
    Granted,
    Inspect,
    LockStatus,
    NodeStatus,
    Reason,
    Refused,
    Release,
    Released,
)
from fencelock.actors.api.name import kind_of, plain_name
from fencelock.actors.api.pool import (
    GivePermits,
    PermitsGiven,
    PermitsTaken,
    PoolResized,
    ResizePool,
    TakePermits,
)
from fencelock.actors.api.role_request import (
    ClockTime,
    DescribeRole,
    Fact,
    Leaders,
    LockQueue,
    Queues,
    ReadClock,
    ReadLeaders,
    ReadQueues,
    ReadState,
    RoleDescription,
    RoleRequest,
    RoleState,
)
from fencelock.actors.api.rwlock import AcquireReadWrite, Downgrade
from fencelock.actors.api.self_report import Counted, Elected, MemberSeen
from fencelock.actors.api.semaphore import (
    AcquirePermits,
    ReleasePermits,
    ResizeSemaphore,
    SemaphoreResized,
)
from fencelock.actors.api.session_message import ListedLock, ListedObject
from fencelock.actors.error import (
    AcquireCancelledError,
    AlreadyHeldError,
    BrokenBarrierError,
    ClosedError,
    ConfigError,
    FencelockError,
    ForbiddenError,
    InternalError,
    InvalidRequestError,
    LimitReachedError,
    LockOwnershipLostError,
    LockTimeoutError,
    MembershipError,
    NotHeldError,
    OverloadedError,
    RefusedError,
    SessionExpiredError,
    StaleError,
    StaleFenceError,
    UnavailableError,
    UnknownOutcomeError,
    UnsupportedError,
    VersionMismatchError,
    WrongClusterError,
)
from fencelock.actors.session.ask_error import AskTimeoutError, RoleGoneError
from fencelock.actors.session.holds import HoldState
from fencelock.actors.session.message import ClusterState
from fencelock.cluster.client.barrier import Barrier
from fencelock.cluster.client.callback_executor import Notice
from fencelock.cluster.client.client import Client, connect
from fencelock.cluster.client.client import default_client as _client
from fencelock.cluster.client.counter import Counter
from fencelock.cluster.client.election import Candidate, Election, ElectionWatch, Leader
from fencelock.cluster.client.latch import Latch
from fencelock.cluster.client.lazy import defaults as _defaults
from fencelock.cluster.client.lock import Hold, Lock, RLock
from fencelock.cluster.client.lock_all import HoldAll, LockAll
from fencelock.cluster.client.map import Entry, Map, MapChange, MapListing, MapWatch
from fencelock.cluster.client.pool import Pool
from fencelock.cluster.client.remote_ref import RemoteRef
from fencelock.cluster.client.rwlock import RWLock
from fencelock.cluster.client.semaphore import Semaphore

# The default client of this process, which connects at its first use.
configure = _defaults.configure
lock = _client.lock
rlock = _client.rlock
semaphore = _client.semaphore
rwlock = _client.rwlock
lock_all = _client.lock_all
election = _client.election
map = _client.map
latch = _client.latch
barrier = _client.barrier
counter = _client.counter
locked = _client.locked
attach = _client.attach
close = _client.close

__all__ = [
    "Absence",
    "Acquire",
    "AcquireAll",
    "AcquireCancelledError",
    "AcquirePermits",
    "AcquireReadWrite",
    "AddToCounter",
    "AlreadyHeldError",
    "AskTimeoutError",
    "Attach",
    "AwaitBarrier",
    "AwaitLatch",
    "Barrier",
    "BarrierPassed",
    "BrokenBarrierError",
    "Cancel",
    "Cancelled",
    "Candidate",
    "Change",
    "ChangeMembers",
    "ChangesRead",
    "Client",
    "ClockTime",
    "ClosedError",
    "ClusterDown",
    "ClusterState",
    "ClusterUp",
    "ConfigError",
    "Contender",
    "CountDown",
    "Counted",
    "CountedDown",
    "Counter",
    "CounterChanged",
    "DeleteEntry",
    "Describe",
    "DescribeRole",
    "Detach",
    "Downgrade",
    "Elected",
    "Election",
    "ElectionWatch",
    "Entry",
    "EntryChanged",
    "EntryList",
    "EntrySeen",
    "Fact",
    "FencelockError",
    "ForbiddenError",
    "GetEntry",
    "GivePermits",
    "Granted",
    "Hold",
    "HoldAll",
    "HoldState",
    "Inspect",
    "InternalError",
    "InvalidRequestError",
    "Latch",
    "LatchPassed",
    "Lead",
    "Leader",
    "Leaders",
    "LimitReachedError",
    "ListEntries",
    "ListedLock",
    "ListedObject",
    "Lock",
    "LockAll",
    "LockOwnershipLostError",
    "LockQueue",
    "LockStatus",
    "LockTimeoutError",
    "Map",
    "MapChange",
    "MapListing",
    "MapWatch",
    "MemberAction",
    "MemberSeen",
    "MembersChanged",
    "MembersRead",
    "MembershipError",
    "NodeReport",
    "NodeRole",
    "NodeStatus",
    "NotHeldError",
    "Notice",
    "OverloadedError",
    "PermitsGiven",
    "PermitsTaken",
    "Pool",
    "PoolResized",
    "PutEntry",
    "Queues",
    "RLock",
    "RWLock",
    "ReadChanges",
    "ReadClock",
    "ReadLeaders",
    "ReadMembers",
    "ReadQueues",
    "ReadState",
    "Reason",
    "Refused",
    "RefusedError",
    "Release",
    "ReleasePermits",
    "Released",
    "RemoteRef",
    "ResizePool",
    "ResizeSemaphore",
    "RoleDescription",
    "RoleGoneError",
    "RoleRequest",
    "RoleState",
    "Semaphore",
    "SemaphoreResized",
    "SessionExpiredError",
    "SetCounter",
    "StaleError",
    "StaleFenceError",
    "TakePermits",
    "UnavailableError",
    "UnknownOutcomeError",
    "UnsupportedError",
    "VersionMismatchError",
    "Watch",
    "WrongClusterError",
    "attach",
    "barrier",
    "close",
    "configure",
    "connect",
    "counter",
    "election",
    "kind_of",
    "latch",
    "lock",
    "lock_all",
    "locked",
    "map",
    "plain_name",
    "rlock",
    "rwlock",
    "semaphore",
]
