"""An auditor: asks all proxies after the end of a run whether holds or waits are left."""

from __future__ import annotations

from fencelock.actors.api.message import Describe, NodeStatus
from fencelock.actors.api.session_message import ListLocks, LockList
from fencelock.actors.effect import Effects, Send, Wake
from fencelock.actors.message import Address, Instant, Timer, node_of
from fencelock.actors.role import Host, Role

AUDIT_MS = 500


class Audit(Timer):
    """It is time to ask the proxies again."""


AuditorEvent = NodeStatus | LockList | Audit


class Auditor(Role[AuditorEvent]):
    """Asks every proxy for the holds and waits through it, until there are none.

    Where the cluster keeps one table of locks, every proxy is asked for a linearizable list
    of the held locks: a lock that is not held has no waiters.
    """

    def __init__(
        self, address: Address, host: Host, *, proxies: tuple[Address, ...], table: bool = False
    ) -> None:
        super().__init__(address, host)
        self.proxies = proxies
        self.table = table
        self.asked = 0
        self.left: dict[str, str] = dict.fromkeys(proxies, "it never answered")
        """The problems that a proxy still has, by its address."""

    def begin(self, now: Instant) -> Effects:
        return self._ask()

    def handle(self, sender: Address, event: AuditorEvent, now: Instant) -> Effects:
        match event:
            case Audit():
                return self._ask() if self.left else ()
            case NodeStatus(locks=()) | LockList(lines=()):
                self.left.pop(sender, None)
            case NodeStatus(locks=left) | LockList(lines=left):
                if sender in self.left:
                    self.left[sender] = f"it still has {left!r}"
        return ()

    def _ask(self) -> Effects:
        session = node_of(self.address)
        self.asked += 1
        query = (
            ListLocks(session=session, request=self.asked)
            if self.table
            else Describe(session=session)
        )
        return [*(Send(Address(proxy), query) for proxy in self.left), Wake(AUDIT_MS, Audit())]
