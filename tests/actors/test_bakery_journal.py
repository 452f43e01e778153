"""Journals of `bakery` with what no honest member can have: found, mended, or to be replaced."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fencelock.actors.bakery.electorate import ELECTORATE_NUMBER_MAX, Electorate
from fencelock.actors.bakery.epochs import EPOCHS_AHEAD_MAX
from fencelock.actors.bakery.journal import (
    find_impossible,
    why_implausible,
    why_unusable,
    without_impossible,
)
from fencelock.actors.bakery.ticket import LEASE_MS_MAX
from fencelock.actors.bakery.wire import (
    EPOCH_MAX,
    BoundStatement,
    Chosen,
    Install,
    Propose,
    Seating,
)
from fencelock.actors.bootstrap_message import GroupConfig
from fencelock.actors.membership import Member

LEADERS = (Chosen("n1", 1), Chosen("n2", 2))
FIRST = BoundStatement("n1", 3, 20_000)
INSTALL = Install(seating=Seating(5, LEADERS, 10_000), statements=(FIRST,))
PROMISE = Propose(epoch=7, leaders=LEADERS)
FOUNDED_MS = 1_800_000_000_000
GROUP = GroupConfig(to=0, group=1, founded_ms=FOUNDED_MS, voters=())
BELOW = Electorate(9, (Member("n1", "", 1),))
STRANGE = Electorate(2, (Member("N/1", "", 1),))


def stated(*statements: BoundStatement) -> Install:
    return replace(INSTALL, statements=statements)


def test_a_record_of_an_honest_member_is_left_as_it_is() -> None:
    records = [GROUP, INSTALL, PROMISE]
    assert find_impossible(records) == []
    assert why_unusable(records) == ""
    assert why_implausible(records, FOUNDED_MS) == ""


@pytest.mark.parametrize("bound_ms", [0, -1, 2 * LEASE_MS_MAX, (1 << 63) - 1])
def test_the_longest_lease_is_reported_in_place_of_an_impossible_one(bound_ms: int) -> None:
    wrong = replace(INSTALL, seating=INSTALL.seating._replace(bound_ms=bound_ms))
    (found,) = find_impossible([INSTALL, wrong, PROMISE])

    mended = without_impossible([INSTALL, wrong, PROMISE], [found])

    assert found.why == f"epoch 5: leases of {bound_ms} ms, and 1 to {LEASE_MS_MAX} ms are possible"
    longest = replace(INSTALL, seating=INSTALL.seating._replace(bound_ms=LEASE_MS_MAX))
    assert mended == [INSTALL, longest, PROMISE]
    assert find_impossible(mended) == []


@pytest.mark.parametrize(
    ("statement", "mended"),
    [
        (BoundStatement("n9", 1, 5), ()),
        (BoundStatement("n2", 0, 5), (BoundStatement("n2", 1, LEASE_MS_MAX),)),
        (BoundStatement("n2", ELECTORATE_NUMBER_MAX, 5), (BoundStatement("n2", 1, LEASE_MS_MAX),)),
        (BoundStatement("n2", 1, 0), (BoundStatement("n2", 1, LEASE_MS_MAX),)),
        (BoundStatement("n2", 1, 2 * LEASE_MS_MAX), (BoundStatement("n2", 1, LEASE_MS_MAX),)),
    ],
)
def test_a_statement_that_cannot_be_lowers_no_lease(
    statement: BoundStatement, mended: tuple[BoundStatement, ...]
) -> None:
    records = [stated(FIRST, statement)]
    (found,) = find_impossible(records)

    assert found.why == (
        f"epoch 5: statement {statement.number} of {statement.leader} about leases of "
        f"{statement.bound_ms} ms, and 1 to {LEASE_MS_MAX} ms, by one of its leaders, are possible"
    )
    assert without_impossible(records, [found]) == [stated(FIRST, *mended)]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (replace(PROMISE, epoch=0), f"epoch 0, and 1 to {EPOCH_MAX} are possible"),
        (
            replace(PROMISE, epoch=EPOCH_MAX + 1),
            f"epoch {EPOCH_MAX + 1}, and 1 to {EPOCH_MAX} are possible",
        ),
        (replace(PROMISE, leaders=()), "a promise of epoch 7 for impossible leaders"),
        (
            replace(PROMISE, leaders=(LEADERS[0], LEADERS[0])),
            "a promise of epoch 7 for impossible leaders",
        ),
        (replace(PROMISE, electorate=STRANGE), "impossible members after 2 changes in epoch 7"),
        (replace(PROMISE, electorate=BELOW), "impossible members after 9 changes in epoch 7"),
        (
            replace(INSTALL, seating=Seating(0, LEADERS, 5)),
            f"epoch 0, and 1 to {EPOCH_MAX} are possible",
        ),
        (
            replace(INSTALL, seating=Seating(EPOCH_MAX + 1, LEADERS, 5)),
            f"epoch {EPOCH_MAX + 1}, and 1 to {EPOCH_MAX} are possible",
        ),
        (
            replace(INSTALL, seating=Seating(5, (), 5)),
            "a seating of epoch 5 with impossible leaders",
        ),
        (replace(INSTALL, electorate=STRANGE), "impossible members after 2 changes in epoch 5"),
        (replace(INSTALL, electorate=BELOW), "impossible members after 9 changes in epoch 5"),
    ],
)
def test_epochs_leaders_and_members_cannot_be_mended(record: Propose | Install, why: str) -> None:
    assert why_unusable([GROUP, INSTALL, record]) == why


def test_an_epoch_beyond_the_age_of_the_group_is_named() -> None:
    far = replace(PROMISE, epoch=EPOCHS_AHEAD_MAX + 10)
    assert why_implausible([GROUP, far], FOUNDED_MS) == (
        f"epoch {far.epoch}, and {EPOCHS_AHEAD_MAX} is the highest that is plausible on this date"
    )
    assert why_implausible([GROUP, far], FOUNDED_MS + 10_000) == ""
    assert why_unusable([GROUP, far]) == ""  # The clock of this host may be wrong.
