"""fencelock: distributed locks that hold. These names are public; all others are internal.

For example::

    fencelock.configure("tcp://db-1:4040,tcp://db-2:4040")  # Or set FENCELOCK_CONNECT.

    with fencelock.lock("orders/42") as hold:
        storage.write(order, fence=hold.fence)

``__all__`` has what programs need day by day. The requests and replies of `ask`, such as `Acquire`,
are here as well.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencelock import aio
    from fencelock.cluster.node.config import Config, load
    from fencelock.cluster.node.node import Node
    from fencelock.names import *  # noqa: F403

__version__ = "0.1.0"

__all__ = [  # noqa: F405 (as above)
    "AcquireCancelledError",
    "AlreadyHeldError",
    "AskTimeoutError",
    "Barrier",
    "BrokenBarrierError",
    "Candidate",
    "Client",
    "ClosedError",
    "ClusterState",
    "Config",
    "ConfigError",
    "Contender",
    "Counter",
    "Election",
    "ElectionWatch",
    "Entry",
    "FencelockError",
    "ForbiddenError",
    "Hold",
    "HoldAll",
    "HoldState",
    "InternalError",
    "InvalidRequestError",
    "Latch",
    "Leader",
    "LimitReachedError",
    "ListedLock",
    "ListedObject",
    "Lock",
    "LockAll",
    "LockOwnershipLostError",
    "LockStatus",
    "LockTimeoutError",
    "Map",
    "MapChange",
    "MapListing",
    "MapWatch",
    "MembershipError",
    "Node",
    "NodeStatus",
    "NotHeldError",
    "Notice",
    "OverloadedError",
    "Pool",
    "RLock",
    "RWLock",
    "RefusedError",
    "RemoteRef",
    "RoleGoneError",
    "Semaphore",
    "SessionExpiredError",
    "StaleError",
    "StaleFenceError",
    "UnavailableError",
    "UnsupportedError",
    "VersionMismatchError",
    "WrongClusterError",
    "aio",
    "attach",
    "barrier",
    "close",
    "configure",
    "connect",
    "counter",
    "election",
    "kind_of",
    "latch",
    "load",
    "lock",
    "lock_all",
    "locked",
    "plain_name",
    "rlock",
    "rwlock",
    "semaphore",
]

_ELSEWHERE = {
    "Config": "fencelock.cluster.node.config",
    "Node": "fencelock.cluster.node.node",
    "load": "fencelock.cluster.node.config",
}
"""Names for programs that run a node; the others are those of a client."""


if not TYPE_CHECKING:  # A type checker finds names that are not there.

    def __getattr__(name: str) -> Any:
        """Import a name when it is first used: commands, and parts of fencelock, need only some."""
        if name == "aio":
            return import_module("fencelock.aio")
        names = import_module(_ELSEWHERE.get(name, "fencelock.names"))
        if name.startswith("_") or not hasattr(names, name):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found = getattr(names, name)
        return found


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__, "map", "__version__"]
