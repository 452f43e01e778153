"""Rules of holding, waiting, sessions and lost majorities, as the client's session keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import checked
from support.session_harness import ANN, BEN, WATCHER, A, B, SessionHarness, of, one

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.cluster_message import Describe, Probe, ProbeReply
from fencelock.actors.api.counter import AddToCounter
from fencelock.actors.api.lock_message import Renew
from fencelock.actors.api.operator_message import Evict, Evicted, ListLocks
from fencelock.actors.api.request import Command
from fencelock.actors.api.session_message import Alive, End, Ended, KeepAlive, Open
from fencelock.actors.effect import Send
from fencelock.actors.message import Address, Event, Message, address_of, role_of
from fencelock.actors.session.event import Close, Closed, HoldsLost, Loss
from fencelock.actors.session.requests import SessionRequests
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import Queued, Result


def test_an_acquire_opens_a_session_and_is_sent_in_it_under_a_number(
    harness: SessionHarness,
) -> None:
    sends = harness.acquire(token=9)
    assert one(Open, sends) == Open(
        session="c", ttl_ms=15_000, label="here:1", request=one(Open, sends).request
    )
    assert of(api.Acquire, sends) == []
    asked = harness.open(sends)
    assert one(api.Acquire, asked, A).session == "c.1"
    assert one(api.Granted, harness.grant(asked), ANN).request == 9


def test_a_session_that_is_refused_ends_the_acquire_at_once(harness: SessionHarness) -> None:
    sends = harness.refuse(harness.acquire(), api.Reason.OVERLOADED)
    refused = one(api.Refused, sends, ANN)
    assert (refused.reason, refused.detail) == (api.Reason.OVERLOADED, "no session: no")
    assert of(Open, harness.run(20_000)) == []
    assert one(Open, harness.acquire()).session == "c~2"


def test_an_acquire_in_an_expired_session_goes_on_in_the_next_one_for_what_is_left_of_its_time(
    harness: SessionHarness,
) -> None:
    asked = harness.open(harness.acquire(wait_ms=5_000))
    harness.run(2_000)
    sends = harness.refuse(asked, api.Reason.SESSION_EXPIRED)
    assert of(api.Refused, sends) == []
    assert one(Open, sends).session == "c~2"
    again = one(api.Acquire, harness.open(sends))
    assert again.session == "c~2.2"
    assert again.request == one(api.Acquire, asked).request
    assert again.wait_ms == 3_000


def test_a_re_entry_of_what_the_session_lost_is_refused_as_lost(harness: SessionHarness) -> None:
    harness.hold(limit=0)
    sends = harness.refuse(harness.acquire(limit=0), api.Reason.SESSION_EXPIRED)
    assert one(api.Refused, sends, ANN).reason is api.Reason.OWNERSHIP_LOST
    assert one(HoldsLost, sends, WATCHER).losses == (Loss("x", "ann", 7),)
    assert of(Open, sends) == []


def test_a_wait_that_the_cluster_gave_up_is_asked_for_anew(harness: SessionHarness) -> None:
    asked = harness.open(harness.acquire())
    assert harness.refuse(asked, api.Reason.CANCELLED) == []
    assert one(api.Acquire, harness.run(300)).request > one(api.Acquire, asked).request


def test_an_acquire_refused_otherwise_leaves_nothing(harness: SessionHarness) -> None:
    asked = harness.open(harness.acquire())
    sends = harness.refuse(asked, api.Reason.INVALID)
    assert one(api.Refused, sends, ANN).reason is api.Reason.INVALID
    assert of(api.Cancel, harness.run(20_000)) == []
    again = harness.open(harness.acquire()) or harness.acquire(BEN)
    assert of(api.Acquire, again)


def test_a_copy_that_may_be_queued_is_withdrawn_when_another_copy_is_refused(
    harness: SessionHarness,
) -> None:
    asked = harness.open(harness.acquire())
    harness.run(1_000)  # It was repeated: one copy may wait in the log.
    sends = harness.refuse(asked, api.Reason.OVERLOADED)
    assert one(api.Refused, sends, ANN).reason is api.Reason.OVERLOADED
    assert one(api.Cancel, sends).request == one(api.Acquire, asked).request


@pytest.mark.parametrize("fence", [7, 8])
def test_a_release_of_what_is_not_held_is_refused_here(harness: SessionHarness, fence: int) -> None:
    assert one(api.Refused, harness.release(fence=7), ANN).reason is api.Reason.NOT_HELD
    harness.hold(BEN)
    sends = harness.release(fence=fence)
    assert one(api.Refused, sends, ANN).reason is api.Reason.NOT_HELD
    assert of(api.Release, sends) == []


def test_the_refusal_of_a_release_says_what_its_owner_holds(harness: SessionHarness) -> None:
    def refusal(user: Address, fence: int) -> str:
        return one(api.Refused, harness.release(user, fence=fence), user).detail

    nobody = Address("c/")
    harness.hold(fence=7)
    assert refusal(BEN, 7) == "lock 'x': owner 'ben' does not hold it"
    assert refusal(nobody, 8) == "lock 'x': fence 8 was shown, which does not hold it here"
    assert refusal(ANN, 8) == "lock 'x': owner 'ann' holds it under fence 7, fence 8 was shown"
    harness.release()
    assert refusal(ANN, 7) == "lock 'x': owner 'ann' is releasing it already"


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (api.Acquire(lock="x", owner="ann"), "lock 'x': owner 'ann' holds it, under fence 7"),
        (api.Acquire(lock="y", owner="ann"), "lock 'y': owner 'ann' waits for it already"),
        (
            AddToCounter(counter="c", owner="ann"),
            "counter 'c': a request of owner 'ann' about it is unanswered",
        ),
        (
            Renew(lock="x", fence=7, owner="ann"),
            "lock 'x': this hold has no deadline; every hold on bakery has one, and on paxos every "
            "hold with a duration",
        ),
        (
            Renew(lock="x", fence=8, owner="ann"),
            "lock 'x': owner 'ann' does not hold it under that fence",
        ),
    ],
)
def test_a_request_that_the_client_refuses_itself_says_who_has_what(
    harness: SessionHarness, request_: Any, text: str
) -> None:
    harness.hold()
    harness.acquire(lock="y")
    harness.receive(ANN, AddToCounter(counter="c", owner="ann"))
    assert one(api.Refused, harness.receive(ANN, request_), ANN).detail == text


@pytest.mark.parametrize("way", ["expired", "ended"])
def test_a_release_after_the_session_ended_is_lost_once(harness: SessionHarness, way: str) -> None:
    harness.hold()
    if way == "expired":
        sends = harness.refuse(harness.run(3_100), api.Reason.SESSION_EXPIRED)
    else:
        sends = harness.receive(A, Ended(session="c.1", detail="expired"))
    lost = one(HoldsLost, sends, WATCHER)
    why = {
        "expired": "the cluster does not know the session (any more): no",
        "ended": "the session ended: expired",
    }[way]
    assert (lost.losses, lost.detail) == ((Loss("x", "ann", 7),), why)
    refused = one(api.Refused, harness.release(), ANN)
    assert refused.reason is api.Reason.OWNERSHIP_LOST
    assert refused.detail == f"lock 'x': owner 'ann' held it under fence 7 and lost it: {why}"
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.NOT_HELD


def test_a_release_under_way_when_the_session_ends_is_lost(harness: SessionHarness) -> None:
    harness.hold()
    sends = harness.refuse(harness.release(token=3), api.Reason.SESSION_EXPIRED)
    answer = one(api.Refused, sends, ANN)
    assert (answer.reason, answer.request) == (api.Reason.OWNERSHIP_LOST, 3)
    assert "fence 7" in answer.detail
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.NOT_HELD  # Once.


@pytest.mark.parametrize("user", [ANN, BEN], ids=["the same owner", "another owner"])
def test_a_lost_hold_stays_lost_though_an_owner_holds_anew(
    harness: SessionHarness, user: Address
) -> None:
    harness.hold()
    harness.receive(A, Ended(session="c.1", detail="expired"))
    harness.hold(user, fence=9)
    assert harness.assigned == "c~2.2"
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.OWNERSHIP_LOST
    assert one(api.Released, harness.free(harness.release(user, fence=9)), user).lock == "x"


def test_a_limit_that_is_reached_is_reported_and_changes_nothing(harness: SessionHarness) -> None:
    harness.hold(limit=2)
    harness.hold(limit=2, count=2)
    sends = harness.refuse(harness.acquire(limit=2), api.Reason.LIMIT_REACHED)
    assert one(api.Refused, sends, ANN).reason is api.Reason.LIMIT_REACHED
    assert one(api.Released, harness.free(harness.release(), count=1), ANN).count == 1
    assert one(api.Released, harness.free(harness.release()), ANN).count == 0
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.NOT_HELD


def test_an_owner_that_waits_goes_on_whatever_its_other_threads_do(harness: SessionHarness) -> None:
    harness.open(harness.acquire(limit=0))
    refused = one(api.Refused, harness.acquire(limit=0), ANN)
    assert (refused.reason, "waits" in refused.detail) == (api.Reason.ALREADY_HELD, True)
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.NOT_HELD
    assert len(harness.role.session_state.in_flight.waits) == 1


def test_a_cancel_after_a_grant_takes_back_that_one_entry(harness: SessionHarness) -> None:
    harness.hold(limit=0, token=1)
    harness.hold(limit=0, token=2, count=2)
    cancel = api.Cancel(lock="x", session="", owner="ann", request=2)
    sends = harness.receive(ANN, cancel)
    assert of(api.Cancelled, sends, ANN)
    harness.free(sends, count=1)
    assert one(api.Released, harness.free(harness.release()), ANN).count == 0
    assert harness.role.session_state.holds == {}


def test_no_session_is_opened_by_requests_that_need_none(harness: SessionHarness) -> None:
    for request in (
        Describe(),
        api.Inspect(lock="x"),
        ListLocks(),
        Evict(lock="x", fence=1, operator="me"),
    ):
        (sent,) = harness.receive(ANN, request)
        assert getattr(sent.message, "session", None) == "c"
    assert of(Open, harness.run(5_000)) == []


def test_later_needs_find_the_session_that_the_first_one_opened(harness: SessionHarness) -> None:
    harness.hold()
    sends = harness.acquire(BEN, lock="y")
    assert of(Open, sends) == []
    assert one(api.Acquire, sends).session == "c.1"


def test_needs_at_the_same_time_share_one_open(harness: SessionHarness) -> None:
    sends = [*harness.acquire(ANN), *harness.acquire(BEN), *harness.acquire(BEN, lock="y")]
    assert len(of(Open, sends)) == 1
    asked = of(api.Acquire, harness.open(sends))
    assert [(a.lock, a.owner, a.session) for a in asked] == [
        ("x", "ann", "c.1"),
        ("x", "ben", "c.1"),
        ("y", "ben", "c.1"),
    ]


def test_a_close_of_a_session_that_was_never_opened_does_nothing(harness: SessionHarness) -> None:
    sends = harness.receive(ANN, Close())
    assert [send.message for send in sends] == [Closed(unanswered=0)]


def test_there_are_keep_alives_with_use_and_none_without(harness: SessionHarness) -> None:
    harness.run(1_000)
    assert of(KeepAlive, harness.run(60_000)) == []
    harness.hold()
    sends = harness.run_kept(60_000, A)
    assert {alive.session for alive in of(KeepAlive, sends)} == {"c.1"}
    assert 19 <= len(of(KeepAlive, sends)) <= 21
    harness.free(harness.release())
    assert 9 <= len(of(KeepAlive, harness.run_kept(31_000, A))) <= 11
    assert of(KeepAlive, harness.run(60_000)) == []
    assert harness.alarms == []


def test_an_unused_session_that_may_have_expired_is_left(harness: SessionHarness) -> None:
    harness.hold()
    harness.free(harness.release())
    sends = harness.run_kept(60_000, A)
    assert of(HoldsLost, sends) == []
    assert of(End, sends) == []
    assert one(Open, harness.acquire()).session == "c~2"


def test_a_close_ends_the_session_with_all_that_is_in_it(harness: SessionHarness) -> None:
    harness.hold()
    harness.acquire(BEN)
    sends = harness.receive(ANN, Close())
    assert one(End, sends, A).session == "c.1"
    assert one(api.Refused, sends, BEN).reason is api.Reason.CANCELLED
    assert of(Closed, sends) == []
    done = harness.end(sends)
    assert [send.message for send in done if send.to == ANN] == [Closed(unanswered=0)]
    state = harness.role.session_state
    assert (state.holds, state.endings, state.in_flight.pending) == ({}, {}, {})
    assert one(api.Refused, harness.acquire(), ANN).reason is api.Reason.CANCELLED


def test_a_release_under_way_at_the_close_is_done_by_it(harness: SessionHarness) -> None:
    harness.hold()
    harness.release(token=5)
    done = harness.end(harness.receive(BEN, Close()))
    assert one(api.Released, done, ANN).request == 5


def test_a_wait_that_reaches_no_majority_is_unavailable_and_leaves_nothing(
    harness: SessionHarness,
) -> None:
    harness.acquire(wait_ms=2_000)
    sends = harness.run(7_000)
    assert one(api.Refused, sends, ANN).reason is api.Reason.UNAVAILABLE
    assert of(api.Acquire, harness.open(sends)) == []


def test_a_wait_that_the_majority_stops_answering_is_never_reported_as_timed_out(
    harness: SessionHarness,
) -> None:
    asked = harness.open(harness.acquire(wait_ms=2_000))
    sends = harness.run(7_000)
    assert one(api.Refused, sends, ANN).reason is api.Reason.UNAVAILABLE
    cancel = of(api.Cancel, sends)[-1]
    assert cancel.request == one(api.Acquire, asked).request
    assert of(api.Granted, harness.grant(asked)) == []


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
