"""The public names of `fencelock`, which imports this module when one of them is first used.

A name that is imported as itself is public, to type checkers too.
"""

# ruff: noqa: PLC0414 (as the docstring says)

from fencelock.actors.api.barrier import AwaitBarrier as AwaitBarrier
from fencelock.actors.api.barrier import BarrierPassed as BarrierPassed
from fencelock.actors.api.changes import Change as Change
from fencelock.actors.api.changes import ChangesRead as ChangesRead
from fencelock.actors.api.changes import ReadChanges as ReadChanges
from fencelock.actors.api.cluster_message import ClusterDown as ClusterDown
from fencelock.actors.api.cluster_message import ClusterUp as ClusterUp
from fencelock.actors.api.cluster_message import Describe as Describe
from fencelock.actors.api.cluster_message import Elected as Elected
from fencelock.actors.api.cluster_message import MemberSeen as MemberSeen
from fencelock.actors.api.cluster_message import NodeStatus as NodeStatus
from fencelock.actors.api.cluster_message import Watch as Watch
from fencelock.actors.api.counter import AddToCounter as AddToCounter
from fencelock.actors.api.counter import CounterChanged as CounterChanged
from fencelock.actors.api.counter import SetCounter as SetCounter
from fencelock.actors.api.election import Lead as Lead
from fencelock.actors.api.handover import Attach as Attach
from fencelock.actors.api.handover import Detach as Detach
from fencelock.actors.api.latch import AwaitLatch as AwaitLatch
from fencelock.actors.api.latch import CountDown as CountDown
from fencelock.actors.api.latch import CountedDown as CountedDown
from fencelock.actors.api.latch import LatchPassed as LatchPassed
from fencelock.actors.api.lock_all import AcquireAll as AcquireAll
from fencelock.actors.api.lock_message import Absence as Absence
from fencelock.actors.api.lock_message import Acquire as Acquire
from fencelock.actors.api.lock_message import Cancel as Cancel
from fencelock.actors.api.lock_message import Cancelled as Cancelled
from fencelock.actors.api.lock_message import Contender as Contender
from fencelock.actors.api.lock_message import Granted as Granted
from fencelock.actors.api.lock_message import Inspect as Inspect
from fencelock.actors.api.lock_message import LockStatus as LockStatus
from fencelock.actors.api.lock_message import Reason as Reason
from fencelock.actors.api.lock_message import Refused as Refused
from fencelock.actors.api.lock_message import Release as Release
from fencelock.actors.api.lock_message import Released as Released
from fencelock.actors.api.map import DeleteEntry as DeleteEntry
from fencelock.actors.api.map import EntryChanged as EntryChanged
from fencelock.actors.api.map import EntryList as EntryList
from fencelock.actors.api.map import EntrySeen as EntrySeen
from fencelock.actors.api.map import GetEntry as GetEntry
from fencelock.actors.api.map import ListEntries as ListEntries
from fencelock.actors.api.map import PutEntry as PutEntry
from fencelock.actors.api.membership_message import ChangeMembers as ChangeMembers
from fencelock.actors.api.membership_message import MemberAction as MemberAction
from fencelock.actors.api.membership_message import MembersChanged as MembersChanged
from fencelock.actors.api.membership_message import MembersRead as MembersRead
from fencelock.actors.api.membership_message import NodeReport as NodeReport
from fencelock.actors.api.membership_message import NodeRole as NodeRole
from fencelock.actors.api.membership_message import ReadMembers as ReadMembers
from fencelock.actors.api.name import kind_of as kind_of
from fencelock.actors.api.name import plain_name as plain_name
from fencelock.actors.api.operator_message import ListedLock as ListedLock
from fencelock.actors.api.operator_message import ListedObject as ListedObject
from fencelock.actors.api.pool import GivePermits as GivePermits
from fencelock.actors.api.pool import PermitsGiven as PermitsGiven
from fencelock.actors.api.pool import PermitsTaken as PermitsTaken
from fencelock.actors.api.pool import ResizePool as ResizePool
from fencelock.actors.api.pool import TakePermits as TakePermits
from fencelock.actors.api.role_request import ClockTime as ClockTime
from fencelock.actors.api.role_request import Counted as Counted
from fencelock.actors.api.role_request import DescribeRole as DescribeRole
from fencelock.actors.api.role_request import Fact as Fact
from fencelock.actors.api.role_request import Leaders as Leaders
from fencelock.actors.api.role_request import LockQueue as LockQueue
from fencelock.actors.api.role_request import Queues as Queues
from fencelock.actors.api.role_request import ReadClock as ReadClock
from fencelock.actors.api.role_request import ReadLeaders as ReadLeaders
from fencelock.actors.api.role_request import ReadQueues as ReadQueues
from fencelock.actors.api.role_request import ReadState as ReadState
from fencelock.actors.api.role_request import RoleDescription as RoleDescription
from fencelock.actors.api.role_request import RoleRequest as RoleRequest
from fencelock.actors.api.role_request import RoleState as RoleState
from fencelock.actors.api.rwlock import AcquireReadWrite as AcquireReadWrite
from fencelock.actors.api.rwlock import Downgrade as Downgrade
from fencelock.actors.api.semaphore import AcquirePermits as AcquirePermits
from fencelock.actors.api.semaphore import ReleasePermits as ReleasePermits
from fencelock.actors.api.semaphore import Resized as Resized
from fencelock.actors.api.semaphore import ResizeSemaphore as ResizeSemaphore
from fencelock.actors.error import AcquireCancelledError as AcquireCancelledError
from fencelock.actors.error import AlreadyHeldError as AlreadyHeldError
from fencelock.actors.error import BrokenBarrierError as BrokenBarrierError
from fencelock.actors.error import ClosedError as ClosedError
from fencelock.actors.error import ConfigError as ConfigError
from fencelock.actors.error import FencelockError as FencelockError
from fencelock.actors.error import ForbiddenError as ForbiddenError
from fencelock.actors.error import InternalError as InternalError
from fencelock.actors.error import InvalidRequestError as InvalidRequestError
from fencelock.actors.error import LimitReachedError as LimitReachedError
from fencelock.actors.error import LockOwnershipLostError as LockOwnershipLostError
from fencelock.actors.error import LockTimeoutError as LockTimeoutError
from fencelock.actors.error import MembershipError as MembershipError
from fencelock.actors.error import NotHeldError as NotHeldError
from fencelock.actors.error import OverloadedError as OverloadedError
from fencelock.actors.error import RefusedError as RefusedError
from fencelock.actors.error import SessionExpiredError as SessionExpiredError
from fencelock.actors.error import StaleError as StaleError
from fencelock.actors.error import StaleFenceError as StaleFenceError
from fencelock.actors.error import UnavailableError as UnavailableError
from fencelock.actors.error import UnsupportedError as UnsupportedError
from fencelock.actors.error import VersionMismatchError as VersionMismatchError
from fencelock.actors.error import WrongClusterError as WrongClusterError
from fencelock.actors.session.asker import AskTimeoutError as AskTimeoutError
from fencelock.actors.session.asker import RoleGoneError as RoleGoneError
from fencelock.actors.session.event import ClusterState as ClusterState
from fencelock.actors.session.holds import HoldState as HoldState
from fencelock.cluster.client.barrier import Barrier as Barrier
from fencelock.cluster.client.callback_executor import Notice as Notice
from fencelock.cluster.client.client import Client as Client
from fencelock.cluster.client.client import connect as connect
from fencelock.cluster.client.client import default_client as _client
from fencelock.cluster.client.counter import Counter as Counter
from fencelock.cluster.client.election import Candidate as Candidate
from fencelock.cluster.client.election import Election as Election
from fencelock.cluster.client.election import ElectionWatch as ElectionWatch
from fencelock.cluster.client.election import Leader as Leader
from fencelock.cluster.client.latch import Latch as Latch
from fencelock.cluster.client.lazy import defaults as _defaults
from fencelock.cluster.client.lock import Hold as Hold
from fencelock.cluster.client.lock import Lock as Lock
from fencelock.cluster.client.lock import RLock as RLock
from fencelock.cluster.client.lock_all import HoldAll as HoldAll
from fencelock.cluster.client.lock_all import LockAll as LockAll
from fencelock.cluster.client.map import Entry as Entry
from fencelock.cluster.client.map import Map as Map
from fencelock.cluster.client.map import MapChange as MapChange
from fencelock.cluster.client.map import MapListing as MapListing
from fencelock.cluster.client.map import MapWatch as MapWatch
from fencelock.cluster.client.pool import Pool as Pool
from fencelock.cluster.client.remote_ref import RemoteRef as RemoteRef
from fencelock.cluster.client.rwlock import RWLock as RWLock
from fencelock.cluster.client.semaphore import Semaphore as Semaphore

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
