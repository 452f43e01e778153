"""Locks with deadlines under all faults, and planted bugs that judges find."""

from __future__ import annotations

from typing import Any

import pytest
from support.workloads import LOSSES, demand_caught, demand_clean

from fencelock.actors.api.message import Reason, refused
from fencelock.actors.api.refusal import Why
from fencelock.actors.api.session_message import Renew, Renewed
from fencelock.actors.session import holds
from fencelock.actors.table import requests
from fencelock.actors.table.deadline import LeasedHold
from fencelock.actors.table.resource import TableHold
from fencelock.actors.table.table import LockTable
from fencelock.verification.simulation.deadlines import DEADLINES

MET = (
    "contender.enters_again",
    "contender.renewed",
    "contender.not_renewed",
    "client.lease_over",
    "client.unlocking",
    "client.wait_renewed",
    *LOSSES,
)


def test_no_seed_breaks_a_promise_and_every_fault_occurred() -> None:
    demand_clean(DEADLINES, MET)


def the_time_without_a_leader_counts(table: LockTable, time_ms: int) -> None:
    table.sessions.extend(max(table.time_ms, time_ms))


def the_client_counts_from_the_reply(
    state: Any, claim: Any, pending: Any, granted: Any, now: Any
) -> Any:
    return COUNT_FROM(state, claim, now, granted, now)


def a_lost_hold_is_renewed(command: Any, reason: Reason, why: Why) -> Any:
    if not isinstance(command, Renew) or reason is not Reason.NOT_HELD:
        return REFUSED(command, reason, why=why)
    fence, hold_ms = command.fence, command.hold_ms or 300
    return Renewed(**command.fields(), fence=fence, hold_ms=hold_ms, grace_ms=300)


def acquiring_again_tells_the_whole(hold: LeasedHold, request: int) -> None:
    TableHold.acquire_again(hold, request)


def no_hold_is_known(state: Any, granted: Any) -> bool:
    del state, granted
    return False


def there_is_no_grace(hold: LeasedHold, table: Any) -> None:
    hold.extend(table, table.time_ms + hold.lasts_ms)


COUNT_FROM = holds._count_from  # pyright: ignore[reportPrivateUsage]
REFUSED = refused


@pytest.mark.parametrize(
    ("plants", "judge"),
    [
        ({(LockTable, "shift"): the_time_without_a_leader_counts}, "early: HoldLost"),
        ({(holds, "begin_lease"): the_client_counts_from_the_reply}, "relied on: HoldLost"),
        ({(requests, "refused"): a_lost_hold_is_renewed}, "lost: Renewed"),
        (
            {
                (LeasedHold, "acquire_again"): acquiring_again_tells_the_whole,
                (holds, "is_known"): no_hold_is_known,
            },
            "relied on: HoldLost",
        ),
        ({(LeasedHold, "restart"): there_is_no_grace}, "early: HoldLost"),
    ],
    ids=["new leader", "from the reply", "lost hold", "again", "no grace"],
)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, plants: dict[tuple[object, str], object], judge: str
) -> None:
    demand_caught(monkeypatch, DEADLINES, plants, judge)
