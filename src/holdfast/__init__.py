"""holdfast: distributed locks that hold. The public names; everything else is an implementation.

For example::

    with holdfast.connect("tcp://10.0.0.1:4040,tcp://10.0.0.2:4040") as client:
        with client.lock("orders/42") as lock:
            storage.write(order, fence=lock.fence)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.actors.client.message import ClusterState
from holdfast.actors.error import (
    AlreadyHeldError,
    CancelledError,
    ClosedError,
    ConfigError,
    HoldfastError,
    InvalidRequestError,
    LimitReachedError,
    LockOwnershipLostError,
    LockTimeoutError,
    NotHeldError,
    OverloadedError,
    RefusedError,
    SessionExpiredError,
    StaleError,
    UnavailableError,
    UnknownOutcomeError,
    UnsupportedError,
    WrongClusterError,
)
from holdfast.actors.lock.cluster_message import ClusterDown, ClusterUp, Watch
from holdfast.actors.lock.message import (
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
from holdfast.actors.lock.self_report import Counted, Elected, MemberSeen
from holdfast.actors.lock.session_message import ListedLock
from holdfast.cluster.client import Client, connect
from holdfast.cluster.hold import HoldState, Notice
from holdfast.cluster.lock import Lock
from holdfast.cluster.log import silence

if TYPE_CHECKING:
    from holdfast import aio
    from holdfast.cluster.config import Config, load
    from holdfast.cluster.node import Node

__version__ = "0.1.0"

__all__ = [
    "Absence",
    "Acquire",
    "AlreadyHeldError",
    "Cancel",
    "Cancelled",
    "CancelledError",
    "Client",
    "ClosedError",
    "ClusterDown",
    "ClusterState",
    "ClusterUp",
    "Config",
    "ConfigError",
    "Contender",
    "Counted",
    "Describe",
    "Elected",
    "Granted",
    "HoldState",
    "HoldfastError",
    "Inspect",
    "InvalidRequestError",
    "LimitReachedError",
    "ListedLock",
    "Lock",
    "LockOwnershipLostError",
    "LockStatus",
    "LockTimeoutError",
    "MemberSeen",
    "Node",
    "NodeStatus",
    "NotHeldError",
    "Notice",
    "OverloadedError",
    "Reason",
    "Refused",
    "RefusedError",
    "Release",
    "Released",
    "SessionExpiredError",
    "StaleError",
    "UnavailableError",
    "UnknownOutcomeError",
    "UnsupportedError",
    "Watch",
    "WrongClusterError",
    "aio",
    "connect",
    "load",
]

_LATER = {
    "Config": "holdfast.cluster.config",
    "Node": "holdfast.cluster.node",
    "load": "holdfast.cluster.config",
}
"""What only those need who run a node: reading a config costs as much to import as all else."""


def __getattr__(name: str) -> Any:
    """Import what a blocking client does not need when it is first asked for."""
    if name == "aio":
        return import_module("holdfast.aio")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


silence()
