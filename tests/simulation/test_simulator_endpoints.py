"""The judge's view of a holder whose granting node crashes."""

from __future__ import annotations

import pytest

from fencelock.actors.api.message import Acquire, Granted
from fencelock.actors.effect import Send
from fencelock.actors.message import Address
from fencelock.verification.simulation.judge import LockJudge
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.workload import PauseEnded


def grant_to(user: str, proxy: str, fence: int, boot: int = 5, at: int = 0) -> list[Delivery]:
    """A grant that comes from a proxy to the session of ``user``, and from there to it."""
    node, owner = user.split("/")
    granted = Granted(lock="x", fence=fence, owner=owner)
    session = Address(f"{node}/session")
    return [
        Delivery(at, node, Address(f"{proxy}/proxy"), session, granted, boot),
        Delivery(at, node, session, Address(user), granted, 1),
    ]


def want(judge: LockJudge, user: str) -> None:
    asked = Send(Address("c1/session"), Acquire(lock="x"))
    judge.handled(Delivery(0, "c1", Address(user), Address(user), PauseEnded(turn=1), 1), [asked])


def watch(judge: LockJudge, deliveries: list[Delivery]) -> None:
    for delivered in deliveries:
        judge.handled(delivered, ())


@pytest.fixture
def judge() -> LockJudge:
    users = (Address("c1/a"), Address("c2/b"))
    judge = LockJudge(("n1", "n2"), users, holds_end_with_node=True)
    for user in users:
        want(judge, user)
    return judge


def test_a_holder_counts_as_outside_from_the_crash_of_its_proxy_on(judge: LockJudge) -> None:
    watch(judge, grant_to("c1/a", "n1", fence=3))
    judge.crashed("n1", 5)

    watch(judge, grant_to("c2/b", "n2", fence=4))

    assert judge.inside["x"].contender == "c2/b"
    assert judge.grants == 2


def test_a_crash_of_another_node_or_an_earlier_life_ends_no_hold(judge: LockJudge) -> None:
    watch(judge, grant_to("c1/a", "n1", fence=3))
    judge.crashed("n2", 5)
    judge.crashed("n1", 4)

    with pytest.raises(ViolationError, match="mutual exclusion"):
        watch(judge, grant_to("c2/b", "n2", fence=4, boot=6))


def test_a_grant_that_outlived_its_proxy_may_be_late_but_not_share_a_fence(
    judge: LockJudge,
) -> None:
    judge.crashed("n1", 5)
    watch(judge, grant_to("c2/b", "n2", fence=4))
    watch(judge, grant_to("c1/a", "n1", fence=3))
    assert judge.inside["x"].contender == "c2/b"

    want(judge, "c1/a")
    with pytest.raises(ViolationError, match="had before"):
        watch(judge, grant_to("c1/a", "n1", fence=4))


def test_a_later_fence_must_be_above_that_of_a_holder_whose_proxy_died(judge: LockJudge) -> None:
    watch(judge, grant_to("c1/a", "n1", fence=9))
    judge.crashed("n1", 5)

    with pytest.raises(ViolationError, match="after fence 9 was shown"):
        watch(judge, grant_to("c2/b", "n2", fence=8))
