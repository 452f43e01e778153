"""A proxy of `bakery` by hand: repetitions, timeouts, and grants without a waiting client."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.proxy_scene import ANN, LEADERS, MEMBERS, BakeryProxyHarness, reply_to
from support.session_harness import of, one

from fencelock.actors.api.lock_message import (
    Acquire,
    Alive,
    Cancel,
    Contender,
    Describe,
    Granted,
    NodeStatus,
    Reason,
    Refused,
    Release,
)
from fencelock.actors.api.session_message import End, Ended, Renew, Renewed
from fencelock.actors.bakery.backend import LEADER_ANSWER_MS
from fencelock.actors.bakery.config import Terms, leader_of
from fencelock.actors.bakery.event import ListTickets, Tally
from fencelock.actors.bakery.ticket import Who, pack_fence
from fencelock.actors.bakery.wire import (
    Error,
    HoldRenewed,
    Lock,
    Locked,
    LockFailed,
    NotLeading,
    Query,
    RenewHold,
    Unlock,
    UnlockAll,
    Unlocked,
)
from fencelock.actors.effect import Send
from fencelock.actors.message import Address, address_of, node_of
from fencelock.actors.proxy.event import Reported

LOCAL = Address("n4/session")
FENCE = pack_fence(1, 9)
WAIT_MS = 2_000
TERMS = Terms(hold_ms=5_000, grace_ms=5_000, least_ms=100, wait_ms=WAIT_MS)


class ProxyHarness(BakeryProxyHarness):
    """The proxy of n4, which does not lead; n1, n2 and n3 do."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(TERMS, seed)
        self.learn()

    def reach(self, reachable: tuple[str, ...], epoch: int = 1) -> list[Send]:
        """Notify the proxy which leaders can be reached."""
        return self.learn(epoch, reachable=reachable)

    def acquire(self, request: int = 1, wait_ms: int | None = 60_000) -> list[Send]:
        """Let ann ask for x."""
        asked = Acquire(lock="x", session="ann", owner="o", request=request, wait_ms=wait_ms)
        return self.receive(ANN, asked)


def asked_of(sends: list[Send], kind: type[Lock | Unlock]) -> Address:
    """Return the receiver of the only message of ``kind``."""
    (to,) = [send.to for send in sends if isinstance(send.message, kind)]
    return to


def locked(who: Who, request: int, fence: int = FENCE) -> Locked:
    return Locked(lock="x", who=who, request=request, fence=fence, hold_ms=5_000, grace_ms=5_000)


@pytest.fixture(params=range(4))
def harness(request: pytest.FixtureRequest) -> ProxyHarness:
    return ProxyHarness(int(request.param))


def test_a_request_repeated_while_it_is_under_way_is_answered_by_a_sign_of_life(
    harness: ProxyHarness,
) -> None:
    harness.acquire()
    again = harness.acquire()
    assert of(Lock, again) == []
    alive = one(Alive, again, ANN)
    assert (alive.session, alive.node, alive.request) == ("ann", "n4", 0)
    assert alive.leader == ""  # Or two proxies that disagree would send a client to and fro.
    release = Release(lock="y", fence=3, session="ann", owner="o", request=2)
    assert of(Alive, harness.receive(ANN, release)) == []
    assert one(Alive, harness.receive(ANN, release), ANN).session == "ann"


def test_a_cancel_goes_to_the_leader_that_has_the_request(harness: ProxyHarness) -> None:
    leader = asked_of(harness.acquire(), Lock)
    cancel = Cancel(lock="x", session="ann", owner="o", request=1)
    assert asked_of(harness.receive(ANN, cancel), Unlock) == leader


def test_a_wait_that_is_over_is_undone_at_the_leader_that_has_it(harness: ProxyHarness) -> None:
    leader = asked_of(harness.acquire(wait_ms=500), Lock)
    sends = harness.run(1_000)
    refused = one(Refused, sends, ANN)
    assert (refused.reason, "obtention" in refused.detail) == (Reason.TIMED_OUT, False)
    assert of(Unlock, sends, leader)[0].waiting  # It may be held through another proxy.


def test_the_end_of_a_wait_is_sent_to_a_silent_leader_for_a_while_only(
    harness: ProxyHarness,
) -> None:
    harness.acquire(wait_ms=500)
    assert len(of(Unlock, harness.run(LEADER_ANSWER_MS))) > 1
    harness.run(1_000)
    assert of(Unlock, harness.run(LEADER_ANSWER_MS)) == []


def test_a_request_that_a_caller_inside_gave_up_is_undone_at_its_leader_whatever_it_has(
    harness: ProxyHarness,
) -> None:
    mine: dict[str, Any] = {"lock": "x", "session": "n4/b00", "owner": "ask-1", "request": 1}
    leader = asked_of(harness.receive(LOCAL, Acquire(**mine, wait_ms=60_000)), Lock)
    sends = harness.receive(LOCAL, Cancel(**mine))
    assert asked_of(sends, Unlock) == leader
    assert not one(Unlock, sends).waiting


def test_a_lost_leader_that_had_a_request_is_not_the_first_to_be_notified_of_its_end() -> None:
    harness = ProxyHarness()
    leader = asked_of(harness.acquire(), Lock)
    others = tuple(name for name in MEMBERS if leader_of(name) != leader)
    harness.reach(others)
    cancel = Cancel(lock="x", session="ann", owner="o", request=1)
    assert asked_of(harness.receive(ANN, cancel), Unlock) != leader


@pytest.mark.parametrize(("client", "session"), [(ANN, "ann"), (LOCAL, "n4/b00")])
def test_a_grant_for_a_client_that_stopped_waiting_is_passed_on_and_the_client_decides(
    harness: ProxyHarness, client: Address, session: str
) -> None:
    """The proxy cannot know whether the client holds the lock through another one."""
    asked = Acquire(lock="x", session=session, owner="o", request=1, wait_ms=500)
    leader = asked_of(harness.receive(client, asked), Lock)
    assert one(Refused, harness.run(1_000), client).reason is Reason.TIMED_OUT
    sends = harness.receive(leader, locked(Who(session, "o"), 1))
    granted = one(Granted, sends, client)
    assert (granted.request, granted.fence, granted.session) == (1, FENCE, session)
    assert of(Unlock, sends) == []


def test_a_grant_that_arrives_twice_is_not_given_back(harness: ProxyHarness) -> None:
    lock = harness.acquire()
    leader, who = asked_of(lock, Lock), one(Lock, lock).who
    assert one(Granted, harness.receive(leader, locked(who, 1)), ANN).fence == FENCE
    assert of(Unlock, harness.receive(leader, locked(who, 1))) == []


def test_a_grant_for_a_client_that_is_not_known_here_is_left_to_its_lease(
    harness: ProxyHarness,
) -> None:
    assert harness.receive(leader_of("n1"), locked(Who("ben", "o"), 1)) == []
    assert "bakery.stray_grant" in harness.counted


def test_the_session_of_callers_inside_is_theirs_alone(harness: ProxyHarness) -> None:
    asked = Acquire(lock="x", session="n4/b00", owner="o", request=1, wait_ms=60_000)
    assert one(Refused, harness.receive(ANN, asked), ANN).reason is Reason.INVALID
    lock = harness.receive(LOCAL, asked)
    leader, who = asked_of(lock, Lock), one(Lock, lock).who
    assert one(Granted, harness.receive(leader, locked(who, 1)), LOCAL).session == "n4/b00"


def test_a_late_refusal_is_dropped(harness: ProxyHarness) -> None:
    late = LockFailed(lock="x", who=Who("ann", "o"), request=1, error=Error.FAILED, detail="no")
    assert harness.receive(leader_of("n1"), late) == []


def test_an_acquire_without_a_timeout_has_that_of_the_cluster_and_learns_it() -> None:
    """The obtention timeout of the source, 5 s by default."""
    assert Terms().wait_ms == 5_000
    harness = ProxyHarness()
    assert one(Lock, harness.acquire(wait_ms=None)).wait_ms == WAIT_MS
    refused = one(Refused, harness.run(3_000), ANN)
    assert refused.reason is Reason.TIMED_OUT
    assert refused.detail.endswith(
        'without a timeout in the call, the limit is 2000 ms: "obtention" under [bakery] in the '
        "configuration"
    )


def test_a_leaders_refusal_names_the_default_timeout_too() -> None:
    harness = ProxyHarness()
    leader = asked_of(harness.acquire(wait_ms=None), Lock)
    failed = LockFailed(
        lock="x", who=Who("ann", "o"), request=1, error=Error.TIMED_OUT, detail="held by ben"
    )
    refused = one(Refused, harness.receive(leader, failed), ANN)
    assert refused.detail.startswith("held by ben; without a timeout")


def test_a_stranger_grants_nothing() -> None:
    harness = ProxyHarness()
    before = len(harness.role.backend)
    stranger = locked(Who("ann", "o"), 1)
    assert harness.receive(address_of("n9", "leader"), stranger) == []
    assert harness.counted[-1] == "bakery.stranger_answers"
    assert len(harness.role.backend) == before


def renewal_of(sends: list[Send]) -> tuple[str, RenewHold]:
    """Return the receiver of the renewal, and the renewal."""
    ((to, renewal),) = [(s.to, s.message) for s in sends if isinstance(s.message, RenewHold)]
    return node_of(to), renewal


def renew(harness: ProxyHarness) -> tuple[str, RenewHold]:
    asked = Renew(lock="x", fence=FENCE, hold_ms=0, session="ann", owner="o", request=1)
    return renewal_of(harness.receive(ANN, asked))


def deny(harness: ProxyHarness, leader: str, renewal: RenewHold) -> list[Send]:
    """Let a leader reply that it does not have the hold."""
    gone = HoldRenewed(number=renewal.number, fence=0, hold_ms=0, grace_ms=0)
    return harness.receive(leader_of(leader), gone)


def test_an_answer_to_another_kind_of_request_ends_none(harness: ProxyHarness) -> None:
    """One that a rogue leader sends must not end a renewal without a reply."""
    first, renewal = renew(harness)
    assert harness.receive(leader_of(first), Unlocked(number=renewal.number, found=True)) == []
    assert harness.counted[-1] == "bakery.late_answer"
    renewed = HoldRenewed(number=renewal.number, fence=FENCE, hold_ms=5_000, grace_ms=5_000)
    assert one(Renewed, harness.receive(leader_of(first), renewed), ANN).fence == FENCE


def test_a_session_has_ended_once_two_of_three_leaders_dropped_its_tickets(
    harness: ProxyHarness,
) -> None:
    asked = of(UnlockAll, harness.receive(ANN, End(session="ann", request=1)))
    dropped = Unlocked(number=asked[0].number, found=True)
    assert harness.receive(leader_of("n1"), dropped) == []
    assert harness.receive(leader_of("n1"), dropped) == []  # One leader counts once.
    assert one(Ended, harness.receive(leader_of("n2"), dropped), ANN).session == "ann"


def test_a_renewal_that_one_leader_knows_nothing_of_is_asked_of_the_others(
    harness: ProxyHarness,
) -> None:
    first, renewal = renew(harness)
    assert renewal.missed == ()
    second, renewal = renewal_of(deny(harness, first, renewal))
    assert deny(harness, first, renewal) == []  # It was asked twice.
    third, renewal = renewal_of(deny(harness, second, renewal))
    assert {first, second, third} == set(MEMBERS[:3])
    assert renewal.missed == (first, second)
    renewed = HoldRenewed(number=renewal.number, fence=FENCE, hold_ms=5_000, grace_ms=5_000)
    assert one(Renewed, harness.receive(leader_of(third), renewed), ANN).fence == FENCE


def test_a_hold_is_lost_once_every_leader_that_can_be_reached_denies_it(
    harness: ProxyHarness,
) -> None:
    first, renewal = renew(harness)
    (lost,) = {"n1", "n2", "n3"} - {first, renewal_of(deny(harness, first, renewal))[0]}
    harness.reach(tuple(name for name in MEMBERS if name != lost))
    second = next(name for name in MEMBERS[:3] if name not in {first, lost})
    assert one(Refused, deny(harness, second, renewal), ANN).reason is Reason.NOT_HELD


def test_a_hold_that_one_of_three_denies_is_not_lost_while_no_other_can_be_reached(
    harness: ProxyHarness,
) -> None:
    first, renewal = renew(harness)
    harness.reach((first, "n4"))
    assert deny(harness, first, renewal) == []
    harness.reach(MEMBERS)
    harness.run(1_000)
    assert renewal_of(deny(harness, first, renewal))[0] != first


def test_a_leader_that_denied_a_hold_is_asked_again_in_a_new_epoch(harness: ProxyHarness) -> None:
    first, renewal = renew(harness)
    deny(harness, first, renewal)
    assert renewal_of(harness.reach(MEMBERS, epoch=2))[1].missed == ()


def test_a_renewal_goes_to_the_owner_that_a_leader_names(harness: ProxyHarness) -> None:
    first, renewal = renew(harness)
    second, renewal = renewal_of(deny(harness, first, renewal))
    (third,) = set(MEMBERS[:3]) - {first, second}
    turned = NotLeading(lock="x", who=Who("ann", "o"), owner=third)
    assert renewal_of(harness.receive(leader_of(second), turned))[0] == third


def test_status_shows_which_members_are_connected() -> None:
    harness = BakeryProxyHarness()
    harness.learn(reachable=("n1",))
    sends = harness.receive(ANN, Describe(session="ann", request=1))
    assert one(ListTickets, sends)
    harness.receive(address_of("n4", "node"), Reported(uptime_ms=1, counters=()))
    status = one(NodeStatus, harness.receive(leader_of("n4"), Tally(serving=False, locks=())))
    assert status.elected is not None
    members = [(member.node, member.connected) for member in status.elected.members]
    assert members == [("n1", True), ("n2", False), ("n3", False), ("n4", False)]


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("serving", [False, True])
def test_status_shows_what_is_awaited_here_while_no_leader_is_ready(
    harness: ProxyHarness, serving: bool, ready: bool
) -> None:
    harness.acquire()
    harness.learn(ready=ready)
    harness.receive(ANN, Describe(session="ann", request=2))
    harness.receive(address_of("n4", "node"), Reported(uptime_ms=1, counters=()))
    replies = harness.receive(leader_of("n4"), Tally(serving=serving, locks=()))
    shown = [
        (lock.lock, lock.holder, [(wait.session, wait.owner) for wait in lock.waiters])
        for lock in one(NodeStatus, replies).locks
    ]
    assert shown == ([] if serving or ready else [("x", None, [("ann", "o")])])


def answers(harness: ProxyHarness, sends: list[Send], holder: Contender | None) -> list[Send]:
    """Let n1 and n3 reply to the read in ``sends``; return what follows."""
    result = reply_to(of(Query, sends)[0], *(() if holder is None else (holder,)))
    return [send for leader in ("n1", "n3") for send in harness.receive(leader_of(leader), result)]


HELD = LockFailed(lock="x", who=Who("ann", "o"), request=2, error=Error.HELD, detail="held: 7")


def test_an_owner_that_a_quorum_knows_to_hold_the_lock_is_refused(harness: ProxyHarness) -> None:
    leader = asked_of(harness.acquire(request=2), Lock)
    sends = harness.receive(leader, HELD)
    assert of(Refused, sends) == []
    assert of(Query, harness.receive(leader, HELD)) == []
    held = Contender("n4", "ann", "o", FENCE, 5)
    refused = one(Refused, answers(harness, sends, held), ANN)
    assert (refused.reason, refused.detail) == (Reason.ALREADY_HELD, "held: 7")
    assert of(Lock, harness.run(3_000)) == []


@pytest.mark.parametrize("holder", [None, Contender("n4", "bob", "o", FENCE, 5)])
def test_another_leader_is_asked_if_one_did_not_learn_of_a_release(
    harness: ProxyHarness, holder: Contender | None
) -> None:
    leader = asked_of(harness.acquire(request=2), Lock)
    sends = harness.receive(leader, HELD)
    assert answers(harness, sends, holder) == []
    other = asked_of(harness.run(300)[:1], Lock)
    assert other != leader
    granted = harness.receive(other, locked(Who("ann", "o"), 2))
    assert one(Granted, granted, ANN).request == 2


def test_a_reply_to_an_earlier_life_of_the_proxy_is_no_reply_to_this_one() -> None:
    """A frame that waited for the node to come back may have it."""
    renew = Renew(lock="x", fence=FENCE, hold_ms=0, session="ann", owner="o", request=1)
    earlier, present = ProxyHarness(seed=1), ProxyHarness(seed=2)
    late, sent = (one(RenewHold, life.receive(ANN, renew)) for life in (earlier, present))
    renewed = HoldRenewed(number=late.number, fence=FENCE, hold_ms=5_000, grace_ms=5_000)
    for leader in LEADERS:
        assert present.receive(leader_of(leader), renewed) == []
    renewed = replace(renewed, number=sent.number)
    assert one(Renewed, present.receive(leader_of(LEADERS[0]), renewed))
