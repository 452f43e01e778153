"""A client's session over a network that loses and repeats: served, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from support.role_harness import RoleHarness
from support.session_harness import ME, A, B

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.session_message import Alive, KeepAlive, Open, Opened
from fencelock.actors.effect import Send
from fencelock.actors.message import Address, Message, address_of, role_of
from fencelock.actors.role_message import LinkDown, LinkUp
from fencelock.actors.session.requests import LockKey
from fencelock.actors.session.session import ClientSession


def test_over_a_network_that_loses_and_repeats_every_user_is_served_and_nothing_is_left() -> None:
    for seed in range(40):
        Fault(seed).run()


class Fault:
    """Users that lock and unlock through two forgetful links, each endpoint with its own locks."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.harness = RoleHarness(
            lambda host: ClientSession(ME, host, session="c", endpoints=(A, B), random=Random(seed))
        )
        self.done: dict[tuple[Address, str, int], Message] = {}
        self.holding: dict[Address, set[str]] = {A: set(), B: set()}
        self.fence = 0
        self.finished = 0
        self.late = 0

    def run(self) -> None:
        users = [address_of("c", f"user{n}") for n in range(6)]
        for user in users:
            self._want(user)
        for _ in range(600):
            self._spread(self.harness.run(100))
            if self.finished == len(users):
                break
        assert self.finished == len(users)
        for _ in range(600):
            self._spread(self.harness.run(100))
        ledger = self.harness.role.session_state
        assert (ledger.in_flight.pending, ledger.in_flight.cancels) == ({}, {})
        assert (ledger.holds, self.holding) == ({}, {A: set(), B: set()})

    def _want(self, user: Address) -> None:
        name = role_of(user)
        self._spread(self.harness.receive(user, api.Acquire(lock=name, owner=name)))

    def _spread(self, sends: list[Send]) -> None:
        queue = list(sends)
        while queue:
            send = queue.pop(0)
            if send.to not in (A, B):
                queue += self._user(send)
            elif self.chance.random() < 0.6:
                for _ in range(self.chance.choice((1, 1, 2))):
                    queue += self._endpoint(send)
        if self.chance.random() < 0.02:
            node = self.chance.choice(("a", "b"))
            event: Callable[..., LinkDown | LinkUp] = self.chance.choice((LinkDown, LinkUp))
            self._spread(self.harness.receive(ME, event(node=node)))

    def _user(self, send: Send) -> list[Send]:
        if isinstance(send.message, api.Granted):
            owner, fence = send.message.owner, send.message.fence
            return self.harness.receive(send.to, api.Release(lock=owner, owner=owner, fence=fence))
        if isinstance(send.message, api.Refused):  # The release is late: wait for it once more.
            assert send.message.reason is api.Reason.UNAVAILABLE
            self.late += 1
            owner = send.message.owner
            fence = self.harness.role.session_state.holds[LockKey(owner, owner)].fence
            return self.harness.receive(send.to, api.Release(lock=owner, owner=owner, fence=fence))
        assert isinstance(send.message, api.Released)
        self.finished += 1
        return []

    def _endpoint(self, send: Send) -> list[Send]:
        """Answer as a proxy does: the same answer to the same number, and perhaps lose it."""
        asked = send.message
        if isinstance(asked, KeepAlive):
            return self._perhaps(send.to, Alive(session="c", node="", request=asked.request))
        if isinstance(asked, Open):
            opened = Opened(session="c", assigned="c", ttl_ms=0, node="", request=asked.request)
            return self._perhaps(send.to, opened)
        assert isinstance(asked, api.Acquire | api.Release | api.Cancel)
        key = (send.to, asked.lock, asked.request)
        if isinstance(asked, api.Cancel):
            if isinstance(self.done.get(key), api.Granted):
                self.holding[send.to].remove(asked.lock)
            self.done[key] = api.Cancelled(**asked.fields())
        elif key not in self.done:
            if isinstance(asked, api.Acquire):
                assert asked.lock not in self.holding[send.to]
                self.holding[send.to].add(asked.lock)
                self.fence += 1
                self.done[key] = api.Granted(**asked.fields(), fence=self.fence)
            else:
                self.holding[send.to].remove(asked.lock)
                self.done[key] = api.Released(**asked.fields())
        return self._perhaps(send.to, self.done[key])

    def _perhaps(self, endpoint: Address, answer: Message) -> list[Send]:
        if self.chance.random() < 0.4:
            return []
        assert isinstance(answer, Alive | Opened | api.Granted | api.Released | api.Cancelled)
        return self.harness.receive(endpoint, answer)
