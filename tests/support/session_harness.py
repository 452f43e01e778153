"""A client's session between endpoints that the test plays."""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.lock_message import Acquire, Granted
from fencelock.actors.api.session_message import Alive, KeepAlive, Open, Opened
from fencelock.actors.effect import Send
from fencelock.actors.message import Address, Event, node_of, role_of
from fencelock.actors.role import Host
from fencelock.actors.role_message import LinkDown, LinkUp
from fencelock.actors.session.holds import ClientHold
from fencelock.actors.session.lease import Stage
from fencelock.actors.session.requests import LockKey
from fencelock.actors.session.session import TTL_MS, ClientSession
from support.role_harness import RoleHarness, only_sent, sent

A, B = Address("a/proxy"), Address("b/proxy")
ANN, BEN = Address("c/ann"), Address("c/ben")
ME, WATCHER = Address("c/session"), Address("c/watcher")

E = TypeVar("E", bound=Event)


class First(Random):
    """A source of chance that always takes the first proxy and never varies a pause."""

    def randrange(self, *args: object, **kwargs: object) -> int:
        return 0

    def random(self) -> float:
        return 0.5


def last(kind: Any, sends: list[Send]) -> tuple[Address, Any]:
    """Return the last message of ``kind`` in ``sends``, after the address to which it goes."""
    asked = [send for send in sends if isinstance(send.message, kind)][-1]
    return asked.to, asked.message


class KeptAlive(RoleHarness[ClientSession]):
    """A session whose keep-alives are answered."""

    def alive(self, sends: list[Send], leader: str = "") -> list[Send]:
        """Answer the last `KeepAlive` in ``sends``; return the next sends."""
        to, asked = last(KeepAlive, sends)
        alive = Alive(session=asked.session, node=node_of(to), request=asked.request, leader=leader)
        return self.receive(to, alive)

    def run_kept(self, ms: int, *endpoints: Address) -> list[Send]:
        """Let time pass while ``endpoints`` confirm the session; return the sends."""
        sends: list[Send] = []
        for _ in range(0, ms, 100):
            received = self.run(100)
            sends += received
            for send in received:
                if isinstance(send.message, KeepAlive) and send.to in endpoints:
                    sends += self.alive([send])
        return sends

    def lose_link(self, node: str) -> list[Send]:
        """Report that the link to ``node`` is down."""
        return self.receive(ME, LinkDown(node=node))

    def regain_link(self, node: str) -> list[Send]:
        """Report that the link to ``node`` is up."""
        return self.receive(ME, LinkUp(node=node))


def new_session(
    host: Host, ttl_ms: int, holds: dict[LockKey, ClientHold] | None = None, *, stays: bool = False
) -> ClientSession:
    """Return the session ``c``, for which nothing is drawn by chance."""
    return ClientSession(
        ME,
        host,
        session="c",
        endpoints=(A, B),
        random=First(),
        watcher=WATCHER,
        ttl_ms=ttl_ms,
        label="here:1",
        holds=holds,
        stays=stays,
    )


class SessionHarness(KeptAlive):
    """A session ``c`` with proxies at ``a`` and ``b``; it begins at the first.

    Args:
        ttl_ms: of its sessions.
        holds: the table in which it keeps its holds.
        stays: whether it keeps to its endpoints.

    """

    def __init__(
        self,
        ttl_ms: int = TTL_MS,
        holds: dict[LockKey, ClientHold] | None = None,
        *,
        stays: bool = False,
    ) -> None:
        super().__init__(lambda host: new_session(host, ttl_ms, holds, stays=stays))
        self.sessions = 0

    @property
    def assigned(self) -> str:
        """The session in force."""
        return self.role.session_state.session_lease.assigned

    def acquire(
        self,
        user: Address = ANN,
        lock: str = "x",
        wait_ms: int | None = None,
        token: int = 0,
        limit: int = 1,
    ) -> list[Send]:
        """Ask for ``lock`` as ``user``, which is its own owner."""
        owner = role_of(user)
        asked = api.Acquire(lock=lock, owner=owner, wait_ms=wait_ms, request=token, limit=limit)
        return self.receive(user, asked)

    def open(self, sends: list[Send], leader: str = "") -> list[Send]:
        """Answer the last `Open` in ``sends`` with a new session; return the next sends."""
        to, asked = last(Open, sends)
        self.sessions += 1
        opened = Opened(
            session=asked.session,
            assigned=f"{asked.session}.{self.sessions}",
            ttl_ms=asked.ttl_ms,
            node=node_of(to),
            request=asked.request,
            leader=leader,
        )
        return self.receive(to, opened)

    def grant(self, sends: list[Send], fence: int = 7, count: int = 1) -> list[Send]:
        """Grant the last `Acquire` in ``sends``; return the next sends."""
        to, asked = last(api.AcquireRequest, sends)
        return self.receive(to, api.Granted(**asked.fields(), fence=fence, count=count))

    def refuse(self, sends: list[Send], reason: api.Reason) -> list[Send]:
        """Refuse the last `Acquire`, `Release`, `Open` or `KeepAlive` in ``sends``."""
        kinds = api.AcquireRequest | api.ReleaseRequest | Open | KeepAlive
        to, asked = last(kinds, sends)
        return self.receive(to, api.refused(asked, reason, "no"))

    def hold(
        self,
        user: Address = ANN,
        lock: str = "x",
        fence: int = 7,
        token: int = 0,
        limit: int = 1,
        count: int = 1,
    ) -> list[Send]:
        """Let ``user`` hold ``lock``, in a new session if there is none; return all sends."""
        sends = self.acquire(user, lock, token=token, limit=limit)
        if not self.assigned:
            sends = [*sends, *self.open(sends)]
        return [*sends, *self.grant(sends, fence, count)]


def of(kind: type[E], sends: list[Send], to: Address | None = None) -> list[E]:
    return sent(sends, kind, to)


def one(kind: type[E], sends: list[Send], to: Address | None = None) -> E:
    return only_sent(sends, kind, to)


class UnkeptSession(KeptAlive):
    """A session ``c`` whose two endpoints have reported that their cluster keeps no sessions."""

    def __init__(self) -> None:
        super().__init__(
            lambda host: ClientSession(ME, host, session="c", endpoints=(A, B), random=First())
        )
        for stage in (Stage.OPENING, Stage.UNKEPT):
            self.role.session_state.session_lease.enter(stage)
        self.role.session_state.session_lease.assigned = "c"

    def acquire(
        self, user: Address = ANN, lock: str = "x", wait_ms: int | None = None, token: int = 0
    ) -> Send:
        """Ask for a lock as ``user``; return what went to an endpoint."""
        asked = Acquire(lock=lock, owner=role_of(user), wait_ms=wait_ms, request=token)
        (send,) = self.receive(user, asked)
        return send

    def grant(self, asked: Send, fence: int = 7) -> list[Send]:
        assert isinstance(asked.message, Acquire)
        return self.receive(asked.to, Granted(**asked.message.fields(), fence=fence))

    def held(self, user: Address = ANN, token: int = 0) -> Send:
        """Let ``user`` hold lock ``x`` under fence 7; return the request that got it."""
        asked = self.acquire(user, token=token)
        self.grant(asked)
        return asked
