"""The client that a command of the CLI gets instead of a connection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

from fencelock.actors.api.cluster_message import NodeStatus
from fencelock.actors.api.lock_message import Contender, LockStatus
from fencelock.actors.api.membership_message import ChangeMembers, MembersChanged, MembersRead
from fencelock.actors.api.operator_message import (
    ListedEviction,
    ListedLock,
    ListedObject,
    ListedSession,
    SessionClosed,
)
from fencelock.actors.session.event import Surveyed
from fencelock.cluster.client.settings import Target
from support.expect import present


@dataclass
class MadeClient:
    """Gives prepared replies, or raises `error`, and remembers its requests.

    `connect_to` replaces that of `fencelock.cluster.client.client`.
    """

    nodes: tuple[NodeStatus, ...] = ()
    silent: tuple[str, ...] = ()
    state: LockStatus | None = None
    listed: tuple[ListedLock, ...] = ()
    read: MembersRead | None = None
    open: tuple[ListedSession, ...] = ()
    taken: tuple[ListedEviction, ...] = ()
    error: Exception | None = None
    asked: list[tuple[object, ...]] = field(default_factory=list[tuple[object, ...]])
    limits: list[float] = field(default_factory=list[float])
    """The times by which replies had to come, one after the other."""

    def connect_to(self, target: Target, *, timeout: float) -> Self:
        self.asked.append(("connect", target.addresses, target.cluster, timeout))
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.asked.append(("close",))

    def _check(self, *asked: object) -> None:
        self.asked.append(asked)
        if self.error is not None:
            raise self.error

    def survey(self, *, roles: bool = False) -> Surveyed:
        return Surveyed(statuses=self.nodes, silent=self.silent)

    def reply_by(self, ends_at: float) -> None:
        self.limits.append(ends_at)

    def status(self, name: str) -> LockStatus:
        self._check("status", name)
        return present(self.state)

    def locks(self, prefix: str = "") -> Iterator[ListedLock]:
        self._check("locks", prefix)
        return iter(self.listed)

    def objects(self, prefix: str = "") -> Iterator[ListedObject]:
        return iter(())

    def members(self) -> MembersRead:
        self._check("members")
        return present(self.read)

    def change_members(self, change: ChangeMembers) -> MembersChanged:
        raise NotImplementedError

    def sessions(self) -> tuple[ListedSession, ...]:
        self._check("sessions")
        return self.open

    def evictions(self) -> tuple[ListedEviction, ...]:
        return self.taken

    def close_session(self, handle: str, operator: str | None = None) -> SessionClosed:
        self._check("close_session", handle, operator)
        return SessionClosed(
            handle=handle, label=self.open[0].label, claims=3, session="s", request=9
        )

    def evict(self, name: str, fence: int, operator: str | None = None) -> Contender:
        self._check("evict", name, fence, operator)
        return present(present(self.state).holder)
