"""A client session with two endpoints of a cluster that keeps no sessions, played by hand."""

from __future__ import annotations

from msgspec.structs import replace

from fencelock.actors.api.message import Acquire, Granted, NodeStatus, Refused
from fencelock.actors.effect import Send
from fencelock.actors.message import Address
from fencelock.actors.session.lease import Stage
from fencelock.actors.session.session import ClientSession
from support.session_harness import ANN, ME, A, B, First, KeptAlive, one
from support.statuses import READY


class UnkeptSession(KeptAlive):
    """A session ``c`` with two endpoints of a cluster that keeps no sessions, as it has said."""

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
        owner = user.partition("/")[2]
        said = self.hear(user, Acquire(lock=lock, owner=owner, wait_ms=wait_ms, request=token))
        (send,) = said
        return send

    def grant(self, asked: Send, fence: int = 7) -> list[Send]:
        assert isinstance(asked.message, Acquire)
        return self.hear(asked.to, Granted(**asked.message.fields(), fence=fence))

    def held(self, user: Address = ANN, token: int = 0) -> Send:
        """Let ``user`` hold lock ``x`` under fence 7; return the request that got it."""
        asked = self.acquire(user, token=token)
        self.grant(asked)
        return asked


def refusal(sends: list[Send], to: Address = ANN) -> Refused:
    return one(Refused, sends, to)


def node_status(node: str, request: int) -> NodeStatus:
    """Return the description that ``node`` gives of itself."""
    nodes = ("a", "b")
    return replace(READY, node=node, protocol="lamport", nodes=nodes, session="c", request=request)
