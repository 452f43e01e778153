"""A retained lock decides by its rules, step by step and in random worlds."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from support.retained_world import RETAIN_MS, SPAN, RetainedWorld, WrongError
from support.role_harness import at

from fencelock.actors.message import Instant
from fencelock.actors.session.lease import SessionTrust
from fencelock.actors.session.requests import LockKey
from fencelock.actors.session.retained import (
    COHORT_MS,
    MOVES,
    PAUSE_MS_MAX,
    PEACE_MS,
    RECALL_PAUSE_MS,
    RETAINED_INVARIANTS,
    Act,
    Admit,
    Divert,
    GiveBack,
    Lose,
    Refuse,
    Request,
    RetainedLock,
    RetainedLocks,
    RetainedState,
    RetainTerms,
    Withdraw,
)

ANN, BEN, CEM, DAN = 1, 2, 3, 4
A, B, C = (LockKey(name, "*") for name in "abc")


class Client:
    """One retained lock, its trust and its clock (ms)."""

    def __init__(self, cohort: int = 0, *, shared: bool = False) -> None:
        self.lock = RetainedLock(RetainTerms(1_000, cohort=cohort, shared=shared))
        self.trust = SessionTrust(at(1_000_000), at(2_000_000))
        self.ms = 10

    def acquire(self, token: int) -> list[Act]:
        return self.lock.acquire(token, at(self.ms))

    def granted(self, fence: int = 1, span: int = SPAN) -> list[Act]:
        return self.lock.granted(self.lock.number, fence, span, self.trust, at(self.ms))

    def release(self, token: int) -> list[Act]:
        return self.lock.release(token, at(self.ms))

    def recall(self, fence: int = 1) -> list[Act]:
        return self.lock.recall(fence, at(self.ms))

    def released(self) -> list[Act]:
        return self.lock.released(self.lock.fence, at(self.ms))

    def held(self, fence: int = 1, span: int = SPAN) -> Client:
        """Return itself once Ann holds the lock under ``fence``."""
        assert self.acquire(ANN) == [Request(self.lock.number)]
        assert self.granted(fence, span) == [Admit(ANN, fence)]
        return self

    def idle(self) -> Client:
        """Return itself once the lock is idle under fence 1."""
        self.held().release(ANN)
        assert self.state is RetainedState.IDLE
        return self

    @property
    def state(self) -> RetainedState:
        return self.lock.state


@pytest.fixture
def client() -> Client:
    return Client()


def test_r1_the_session_asks_once_for_all_that_wait(client: Client) -> None:
    assert client.acquire(ANN) == [Request(1)]
    assert client.acquire(BEN) == []
    assert client.granted(fence=5) == [Admit(ANN, 5)]
    assert client.state is RetainedState.HELD


def test_r2_each_local_owner_has_the_next_fence_of_the_span(client: Client) -> None:
    client.held(100, span=3).release(ANN)
    assert client.acquire(BEN) == [Admit(BEN, 101)]
    client.release(BEN)
    assert client.acquire(CEM) == [Admit(CEM, 102)]


def test_r2_a_used_up_span_is_given_back_and_another_acquired(client: Client) -> None:
    client.held(100, span=1).acquire(BEN)
    assert client.release(ANN) == [GiveBack(100)]
    assert client.acquire(CEM) == []
    assert client.released() == [Request(2)]
    assert client.granted(fence=101) == [Admit(BEN, 101)]
    assert client.release(BEN) == [Admit(CEM, 102)]


def test_r3_a_suspect_session_gives_back_and_the_owner_acquires_anew(client: Client) -> None:
    client.idle()
    client.trust.suspect_at = at(client.ms)
    assert client.acquire(BEN) == [GiveBack(1), Divert(BEN)]


def test_r3_the_clock_finds_a_loss_before_the_session_does(client: Client) -> None:
    client.idle()
    client.trust.suspect_at = client.trust.until = at(client.ms)
    assert client.acquire(BEN) == [GiveBack(1), Request(2)]
    assert client.granted(fence=20) == [GiveBack(20), Divert(BEN)]
    assert client.release(ANN) == []


def test_r3_who_waits_when_the_session_becomes_suspect_takes_the_normal_way(client: Client) -> None:
    client.held().acquire(BEN)
    client.trust.suspect_at = at(client.ms)
    assert client.release(ANN) == [GiveBack(1), Divert(BEN)]


def test_r4_a_repeated_recall_changes_nothing(client: Client) -> None:
    client.held()
    assert client.recall() == []
    paused_until = client.lock.recalls
    client.ms += 50
    assert client.recall() == []
    assert client.lock.recalls == paused_until
    assert client.state is RetainedState.RECALLED
    assert client.release(ANN) == [GiveBack(1)]
    assert client.recall() == []


def test_r4_a_recall_of_an_earlier_hold_is_ignored(client: Client) -> None:
    client.idle()
    assert client.recall(fence=7) == []
    assert client.state is RetainedState.IDLE


def test_r5_an_idle_lock_goes_back_at_once(client: Client) -> None:
    client.idle()
    assert client.recall() == [GiveBack(1)]


def test_r5_a_lock_in_use_goes_back_when_its_owner_releases(client: Client) -> None:
    client.held().acquire(BEN)
    assert client.recall() == [Divert(BEN)]
    assert client.acquire(CEM) == [Divert(CEM)]
    assert client.release(ANN) == [GiveBack(1)]


def test_r5_a_recall_that_came_before_its_grant_is_obeyed(client: Client) -> None:
    client.acquire(ANN)
    client.acquire(BEN)
    client.recall(fence=1)
    assert client.granted(fence=1) == [Admit(ANN, 1), Divert(BEN)]
    assert client.release(ANN) == [GiveBack(1)]


def test_r6_a_cohort_may_have_the_lock_first() -> None:
    client = Client(cohort=2).held()
    for token in (BEN, CEM, DAN):
        client.acquire(token)
    client.recall()
    assert client.release(ANN) == [Admit(BEN, 2)]
    assert client.release(BEN) == [Admit(CEM, 3)]
    assert client.release(CEM) == [GiveBack(1)]
    assert client.released() == [Request(2)]
    assert client.granted(fence=99) == [Admit(DAN, 99)]


def test_r6_a_cohort_ends_in_time() -> None:
    client = Client(cohort=9).held()
    client.acquire(BEN)
    client.recall()
    client.ms += COHORT_MS
    assert client.release(ANN) == [GiveBack(1)]
    assert client.released() == [Request(2)]


def test_r6_a_suspect_session_has_no_further_turns() -> None:
    client = Client(cohort=1).held()
    client.acquire(BEN)
    client.recall()
    client.trust.suspect_at = at(client.ms)
    assert client.release(ANN) == [GiveBack(1), Divert(BEN)]


def test_r7_the_lock_is_not_retained_for_a_while_after_a_recall(client: Client) -> None:
    client.idle()
    client.recall()
    assert client.acquire(BEN) == [Divert(BEN)]
    client.released()
    client.ms += RECALL_PAUSE_MS - 1
    assert client.acquire(CEM) == [Divert(CEM)]
    client.ms += 1
    assert client.acquire(DAN) == [Request(2)]


def test_r7_a_lock_with_a_cohort_is_retained_again_at_once() -> None:
    client = Client(cohort=1).idle()
    client.recall()
    client.released()
    assert client.acquire(BEN) == [Request(2)]


def test_r7_the_while_doubles_and_is_forgotten_in_peace(client: Client) -> None:
    pauses: list[int] = []
    for _ in range(7):
        client.idle()
        client.recall(client.lock.fence)
        client.released()
        assert client.lock.recalls is not None
        pauses.append(client.lock.recalls.pause_ms)
        client.ms += pauses[-1]
    assert pauses == [RECALL_PAUSE_MS * 2**n for n in range(5)] + [PAUSE_MS_MAX] * 2
    client.ms += PEACE_MS
    client.idle()
    client.recall(client.lock.fence)
    assert client.lock.recalls is not None
    assert client.lock.recalls.pause_ms == RECALL_PAUSE_MS


def test_r8_an_idle_lock_expires_and_one_in_use_does_not(client: Client) -> None:
    client.idle()
    client.ms += 999
    assert client.lock.expire(at(client.ms)) == []
    assert client.acquire(BEN) == [Admit(BEN, 2)]
    client.ms += 5_000
    assert client.lock.expire(at(client.ms)) == []
    client.release(BEN)
    client.ms += 1_000
    assert client.lock.expire(at(client.ms)) == [GiveBack(1)]


def test_r8_the_least_recently_used_go_first() -> None:
    locks = RetainedLocks(locks_max=2)
    acts: list[tuple[LockKey, Act]] = []
    for key in (B, A, B, C):
        lock = locks.by_key.setdefault(key, Client().idle().lock)
        acts += locks.note(key, lock, [], at(10))
        if (excess := locks.excess()) is not None:
            acts += locks.evict(excess)
    assert acts == [(A, GiveBack(1))]
    assert locks.due_at == at(1_010)
    assert locks.expire(at(1_009)) == []
    assert locks.expire(at(1_010)) == [(B, GiveBack(1)), (C, GiveBack(1))]
    assert locks.due_at is None
    for key in (A, B, C):
        lock = locks.by_key[key]
        locks.note(key, lock, lock.released(1, at(1_011)), at(1_011))
    assert locks.by_key == {}


def test_r8_idle_locks_go_when_the_session_becomes_suspect() -> None:
    locks = RetainedLocks()
    client = Client().idle()
    locks.by_key[A] = client.lock
    locks.note(A, client.lock, [], at(10))
    client.trust.suspect_at = at(20)
    assert locks.expire(at(20)) == [(A, GiveBack(1))]


def test_r8_close_gives_all_back() -> None:
    locks = RetainedLocks()
    idle, held, wanted = Client().idle(), Client().held(9), Client()
    held.acquire(BEN)
    wanted.acquire(CEM)
    locks.by_key.update({A: idle.lock, B: held.lock, C: wanted.lock})
    assert locks.close() == [(A, GiveBack(1)), (B, Divert(BEN)), (C, Withdraw(1)), (C, Divert(CEM))]
    assert held.acquire(DAN) == []
    assert held.release(ANN) == [GiveBack(9), Divert(DAN)]


def test_a_late_reply_is_not_one_to_a_later_request() -> None:
    locks, terms = RetainedLocks(), RetainTerms(1_000)
    assert locks.acquire(A, ANN, terms, at(10), waits=True) == [(A, Request(1))]
    assert locks.withdraw(A, ANN, at(11)) == [(A, Withdraw(1))]
    assert locks.by_key == {}
    assert locks.acquire(A, BEN, terms, at(12), waits=True) == [(A, Request(2))]
    assert locks.by_key[A].refused(1) == []


def test_r9_a_cancelled_acquire_leaves_nothing(client: Client) -> None:
    client.acquire(ANN)
    assert client.lock.withdraw(ANN, at(10)) == [Withdraw(1)]
    assert client.lock.granted(1, 1, SPAN, client.trust, at(10)) == [GiveBack(1)]
    assert client.state is RetainedState.FREE


def test_r9_a_cancel_that_crosses_with_the_admission_releases(client: Client) -> None:
    client.acquire(ANN)
    client.acquire(BEN)
    client.granted()
    assert client.lock.withdraw(ANN, at(10)) == [Admit(BEN, 2)]


def test_r9_a_refused_request_refuses_all_who_wait_for_it(client: Client) -> None:
    client.acquire(ANN)
    client.acquire(BEN)
    assert client.lock.refused(1) == [Refuse(ANN), Refuse(BEN)]


def test_r9_an_owner_that_does_not_wait_is_refused_alone(client: Client) -> None:
    assert client.lock.acquire(ANN, at(10), waits=False) == [Request(1, waits=False)]
    assert client.acquire(BEN) == []
    assert client.lock.acquire(CEM, at(10), waits=False) == [Refuse(CEM)]
    assert client.lock.refused(1) == [Refuse(ANN), Divert(BEN)]


def test_r9_an_owner_that_does_not_wait_has_an_idle_lock_at_once(client: Client) -> None:
    client.idle()
    assert client.lock.acquire(BEN, at(10), waits=False) == [Admit(BEN, 2)]
    assert client.lock.acquire(CEM, at(10), waits=False) == [Refuse(CEM)]


def test_r9_a_loss_is_told_to_the_local_owner(client: Client) -> None:
    client.held().acquire(BEN)
    assert client.lock.lose() == [Lose(ANN, 1), Divert(BEN)]
    assert client.state is RetainedState.FREE
    assert client.acquire(CEM) == [Request(2)]


def test_r9_a_release_after_the_session_is_over_finds_the_loss(client: Client) -> None:
    client.held()
    client.trust.until = at(client.ms)
    assert client.release(ANN) == [Lose(ANN, 1), GiveBack(1)]


def test_r10_local_owners_are_served_in_order(client: Client) -> None:
    client.acquire(ANN)
    client.acquire(BEN)
    client.acquire(CEM)
    client.granted()
    assert client.release(ANN) == [Admit(BEN, 2)]
    assert client.acquire(DAN) == []
    assert client.release(BEN) == [Admit(CEM, 3)]
    assert client.release(CEM) == [Admit(DAN, 4)]


def test_readers_of_one_client_share_a_retained_lock() -> None:
    client = Client(shared=True)
    client.acquire(ANN)
    client.acquire(BEN)
    assert client.granted() == [Admit(ANN, 1), Admit(BEN, 2)]
    assert client.acquire(CEM) == [Admit(CEM, 3)]
    client.recall()
    assert client.acquire(DAN) == [Divert(DAN)]
    assert client.release(ANN) == []
    assert client.release(CEM) == []
    assert client.release(BEN) == [GiveBack(1)]


def test_a_reader_whom_this_client_cannot_admit_takes_the_normal_way() -> None:
    client = Client(shared=True).held(span=1)
    assert client.acquire(BEN) == [Divert(BEN)]
    assert client.lock.acquire(CEM, at(10), waits=False) == [Divert(CEM)]


def test_a_claim_after_the_time_of_a_cohort_waits_for_the_next_turn() -> None:
    client = Client(cohort=9).held()
    client.recall()
    client.ms += COHORT_MS
    assert client.acquire(BEN) == []
    assert client.release(ANN) == [GiveBack(1)]
    assert client.released() == [Request(2)]


def test_recalls_are_forgotten_although_the_lock_was_never_idle() -> None:
    locks, client = RetainedLocks(), Client().held()
    lock = locks.by_key[A] = client.lock
    client.recall()
    client.release(ANN)
    locks.note(A, lock, client.released(), at(10))
    assert locks.due_at == at(10 + PEACE_MS)
    locks.expire(at(10 + PEACE_MS))
    assert locks.by_key == {}


def test_a_loss_that_was_cut_short_leaves_nobody_behind(client: Client) -> None:
    client.held().lock.lose()
    assert client.lock.reset({ANN: 1}) == [Lose(ANN, 1), GiveBack(1)]
    assert client.lock.users is None


def test_every_move_is_in_the_table(client: Client) -> None:
    assert set(MOVES) == set(RetainedState)
    with pytest.raises(AssertionError, match="cannot be idle"):
        client.lock._move(RetainedState.IDLE)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "shared"])
@pytest.mark.parametrize("cohort", [0, 3])
def test_random_worlds_break_no_invariant(cohort: int, shared: bool) -> None:
    served = local = 0
    for seed in range(150):
        lock = RetainedLock(RetainTerms(RETAIN_MS, cohort=cohort, shared=shared))
        world = RetainedWorld(lock, seed)
        world.run(400)
        served, local = served + world.served, local + world.local_grants
    assert local > 1_000
    assert served > local


def world_of(kind: type[RetainedLock], seed: int, counted_span: int = SPAN) -> RetainedWorld:
    return RetainedWorld(kind(RetainTerms(RETAIN_MS)), seed, counted_span=counted_span)


def first_violation(make: Callable[[int], RetainedWorld]) -> str:
    """Return the error of the first of some worlds that fails, empty if none does."""
    for seed in range(300):
        try:
            make(seed).run(400)
        except WrongError as found:
            return str(found)
    return ""


class SuspectGrants(RetainedLock):
    """Planted bug: a local grant while suspect."""

    def _is_trusted(self, now: Instant) -> bool:
        return self.trust is not None and now < self.trust.until


class EndlessCohort(RetainedLock):
    """Planted bug: a local grant after a recall with cohort 0."""

    def recall(self, fence: int, now: Instant) -> list[Act]:
        terms, self.terms = self.terms, self.terms._replace(cohort=9)
        acts = super().recall(fence, now)
        self.terms = terms
        return acts


class DeafLock(RetainedLock):
    """Planted bug: a recall is lost for good."""

    def recall(self, fence: int, now: Instant) -> list[Act]:
        return []


class EarlyRelease(RetainedLock):
    """Planted bug: a release in the span frees the lock while the next local owner has it."""

    def release(self, token: int, now: Instant) -> list[Act]:
        acts = super().release(token, now)
        return [*acts, GiveBack(self.fence)] if self.users else acts


class HastyExpiry(RetainedLock):
    """Planted bug: idle expiry during a local grant."""

    def expire(self, now: Instant) -> list[Act]:
        if self.state is RetainedState.HELD and now >= self.idle_until:
            self.users = None
            return self._give_back()
        return super().expire(now)


class StaleIdle(RetainedLock):
    """Planted bug: a thread does not look at the clock before the session has noticed a loss."""

    def _is_over(self, now: Instant) -> bool:
        return False

    def _is_trusted(self, now: Instant) -> bool:
        return True


@pytest.mark.parametrize(
    ("bug", "broken"),
    [
        (SuspectGrants, "admitted-in-trust"),
        (StaleIdle, "admitted-in-trust"),
        (EndlessCohort, "strict-recall"),
        (DeafLock, "strict-recall|not answered"),
        (EarlyRelease, "released-unused"),
        (HastyExpiry, "released-unused"),
    ],
)
def test_a_planted_bug_is_caught(bug: type[RetainedLock], broken: str) -> None:
    assert re.search(broken, first_violation(lambda seed: world_of(bug, seed)))


def test_a_span_that_overlaps_the_next_grant_is_caught() -> None:
    found = first_violation(lambda seed: world_of(RetainedLock, seed, counted_span=1))
    assert found.startswith("fences-rise")


def test_the_invariants_that_the_worlds_judge_are_named() -> None:
    assert set(RETAINED_INVARIANTS) == {
        "one-local-owner",
        "span-fences-rise",
        "admitted-in-trust",
        "strict-recall",
        "released-unused",
        "local-queue-in-order",
    }
