"""A client's session, users and a table by chance: nothing is held that no user was granted."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import checked
from support.session_harness import WATCHER, A, B, SessionHarness

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.cluster_message import Probe, ProbeReply
from fencelock.actors.api.operator_message import Evict, Evicted
from fencelock.actors.api.request import Command
from fencelock.actors.api.session_message import Alive, KeepAlive
from fencelock.actors.effect import Send
from fencelock.actors.message import Address, Event, Message, address_of, role_of
from fencelock.actors.session.event import HoldsLost
from fencelock.actors.session.requests import SessionRequests
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import Queued, Result

SEEDS = 60
ANCHOR = address_of("c", "anchor")
"""Holds another lock all along, so that the session stays alive."""


def answer_to(out: Result) -> Message | None:
    """Return an outcome as a proxy sends it, None if it sends none."""
    if isinstance(out, Queued | Evicted) or (isinstance(out, api.Refused) and not out.session):
        return None
    if isinstance(out, api.Refused) and out.reason in (api.Reason.SUPERSEDED, api.Reason.FORGOTTEN):
        return replace(out, reason=api.Reason.CANCELLED)
    return out


class User:
    """One owner: wants a lock, perhaps twice, leaves it, or gives up, all by chance."""

    def __init__(self, name: str, lock: str) -> None:
        self.address, self.lock = address_of("c", name), lock
        self.fence, self.acquisitions, self.token = 0, 0, 0
        self.connected_to = False

    def ask(self, event: Event) -> Event:
        self.connected_to = True
        return event

    def next(self, chance: Random, *, leaving: bool) -> Event | None:
        """Return its present message, or None if there is none."""
        owner = role_of(self.address)
        if self.connected_to:
            if self.token and chance.random() < 0.1:
                cancel = api.Cancel(lock=self.lock, session="", owner=owner, request=self.token)
                self.connected_to, self.token = False, 0
                return chance.choice((cancel, api.Abandon()))
            return None
        if self.acquisitions and (leaving or chance.random() < 0.5):
            return self.ask(api.Release(lock=self.lock, fence=self.fence, owner=owner))
        if leaving or chance.random() < 0.5:
            return None
        self.token = chance.getrandbits(40)
        wait_ms = chance.choice((None, 0, 500, 3_000))
        return self.ask(
            api.Acquire(lock=self.lock, owner=owner, request=self.token, wait_ms=wait_ms, limit=2)
        )

    def receive(self, message: Message) -> None:
        """Take a reply; a reply to a request that was cancelled before does not count."""
        match message:
            case api.Granted(request=token) if token == self.token != 0:
                self.acquisitions, self.fence, self.token = message.count, message.fence, 0
                self.connected_to = False
            case api.Refused(reason=reason) if self.connected_to:
                assert reason is not api.Reason.INVALID
                if not self.token and reason in {api.Reason.OWNERSHIP_LOST, api.Reason.NOT_HELD}:
                    self.acquisitions = 0
                self.connected_to, self.token = False, 0
            case api.Released(count=count) if self.connected_to:
                self.acquisitions, self.connected_to = count, False
            case _:
                pass


class Trial:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.harness = SessionHarness()
        self.table = LockTable()
        self.users = {
            user.address: user for user in (User(f"u{n}", f"lock-{n % 2}") for n in range(5))
        }
        self.late: list[tuple[int, Send]] = []
        self.forced = 0

    def run(self) -> None:
        self.spread(self.harness.receive(ANCHOR, api.Acquire(lock="anchor", owner="anchor")))
        for step in range(300):
            self.step(leaving=step >= 150)
        assert self.harness.assigned == "c.1", "the session was lost"
        for user in self.users.values():
            assert (user.acquisitions, user.connected_to) == (0, False)
        ledger = self.harness.role.session_state
        assert list(self.table.resources) == ["anchor"]
        assert [claim.lock for claim in ledger.holds] == ["anchor"]
        assert (ledger.in_flight.pending, ledger.in_flight.cancels) == ({}, {})

    def step(self, *, leaving: bool) -> None:
        self.spread(self.harness.run(200))
        due = [send for at, send in self.late if at <= self.harness.now_ms]
        self.late = [(at, send) for at, send in self.late if at > self.harness.now_ms]
        for send in due:
            self.spread(self.endpoint(send))
        for address, user in self.users.items():
            event = user.next(self.chance, leaving=leaving)
            if event is not None:
                self.spread(self.harness.receive(address, event))
        if not leaving and self.chance.random() < 0.05:
            self.evict()
        if self.chance.random() < 0.05:
            node = self.chance.choice(("a", "b"))
            self.spread(self.harness.lose_link(node))
            self.spread(self.harness.regain_link(node))

    def evict(self) -> None:
        locks = [lock for lock in self.table.resources if lock != "anchor"]
        if locks:
            self.forced += 1
            lock = self.chance.choice(locks)
            fence = next(iter(self.table.resources[lock].holds)).fence
            force = Evict(operator="op", request=self.forced, lock=lock, fence=fence)
            self.spread(list(self.outcomes(force)))

    def spread(self, sends: list[Send]) -> None:
        """Deliver messages: to users at once, to endpoints by luck."""
        queue = list(sends)
        while queue:
            send = queue.pop(0)
            if send.to == WATCHER:
                self.bereave(send.message)
            elif send.to in self.users:
                assert isinstance(send.message, Message)
                self.users[send.to].receive(send.message)
            elif send.to in (A, B):
                luck = self.chance.random()
                if luck < 0.15:
                    self.late.append((self.harness.now_ms + self.chance.randrange(2_000), send))
                for _ in range(0 if luck < 0.3 else 1 if luck < 0.8 else 2):
                    queue += self.endpoint(send)

    def bereave(self, message: Event) -> None:
        if isinstance(message, HoldsLost):
            for loss in message.losses:
                user = self.users[address_of("c", loss.owner)]
                if user.fence == loss.fence:
                    user.acquisitions = 0

    def endpoint(self, send: Send) -> list[Send]:
        asked = checked(Message, send.message)
        if isinstance(asked, Probe):
            return self.receive(send.to, ProbeReply(session="c", node="", serving=True))
        if isinstance(asked, KeepAlive) and "." not in asked.session:
            return self.receive(send.to, Alive(session="c", node="", request=asked.request))
        assert isinstance(asked, Command)
        return list(self.outcomes(asked))

    def outcomes(self, command: Command) -> Iterator[Send]:
        for outcome in self.table.apply(self.harness.now_ms, command):
            answer = answer_to(outcome)
            if answer is not None and self.chance.random() < 0.75:
                yield from self.receive(self.chance.choice((A, B)), answer)

    def receive(self, endpoint: Address, answer: Message) -> list[Send]:
        return (
            self.harness.receive(endpoint, answer)
            if type(answer) in self.harness.role.accepts
            else []
        )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_table_holds_what_users_were_granted_and_nothing_else(seed: int) -> None:
    Trial(seed).run()


def forgets_what_it_must_withdraw(self: Any, pending: Any, now: Any) -> list[Send]:
    self.drop(pending)
    return []


def repeats_under_new_numbers(self: Any, pending: Any, now: Any) -> list[Send]:
    if pending.times_sent:
        self.drop(pending)
        pending = self._renumbered(pending, pending.endpoint, now)
        self._file(pending)
    sends: list[Send] = SEND(self, pending, now)
    return sends


SEND: Any = vars(SessionRequests)["_send"]


def run_all() -> None:
    for seed in range(SEEDS):
        Trial(seed).run()


@pytest.mark.parametrize(
    ("method", "bug"),
    [("withdraw", forgets_what_it_must_withdraw), ("_send", repeats_under_new_numbers)],
)
def test_a_planted_bug_is_caught(method: str, bug: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionRequests, method, bug)
    with pytest.raises(AssertionError):
        run_all()
