"""The records that no honest member of `bakery` has in its journal, and their repair. Pure.

A member refuses what `bounds` describes, and `EpochLimit` allows. So it is in a journal only if the
content was altered, or was written without these bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fencelock.actors.bakery.bounds import are_seated, is_possible_seating, is_possible_statement
from fencelock.actors.bakery.electorate import Electorate, is_sound
from fencelock.actors.bakery.epochs import LEASE_SLACK_MS, DurablePromises, EpochLimit
from fencelock.actors.bakery.ticket import LEASE_MS_MAX
from fencelock.actors.bakery.wire import EPOCH_MAX, BoundStatement, Install, Propose
from fencelock.actors.bootstrap_message import GroupConfig
from fencelock.actors.message import Instant, Message


class ImpossibleRecord(NamedTuple):
    """A record that no honest member can have, and why."""

    record: Install
    why: str


def find_impossible(records: Sequence[Message]) -> list[ImpossibleRecord]:
    """Return the records of seatings with leases, or statements about them, that cannot be."""
    return [
        ImpossibleRecord(record, f"epoch {record.seating.epoch}: {why}")
        for record in records
        if isinstance(record, Install) and (why := _wrong_with(record))
    ]


def _wrong_with(record: Install) -> str:
    if not _is_lease(record.seating.bound_ms):
        return f"leases of {record.seating.bound_ms} ms, and 1 to {LEASE_MS_MAX} ms are possible"
    for one in record.statements:
        if not _is_possible(one, record):
            return (
                f"statement {one.number} of {one.leader} about leases of {one.bound_ms} ms, and "
                f"1 to {LEASE_MS_MAX} ms, by one of its leaders, are possible"
            )
    return ""


def _is_lease(bound_ms: int) -> bool:
    return 0 < bound_ms <= LEASE_MS_MAX + LEASE_SLACK_MS


def _is_possible(statement: BoundStatement, record: Install) -> bool:
    return is_possible_statement(statement, record.seating) and _is_lease(statement.bound_ms)


def without_impossible(
    records: Sequence[Message], wrong: Sequence[ImpossibleRecord]
) -> list[Message]:
    """Return ``records`` with the longest lease that can be configured for each that is wrong.

    All promises and seatings stay. A leader whose statement is wrong may have made any.
    """
    mended = [one.record for one in wrong]
    return [
        _mend(record) if isinstance(record, Install) and record in mended else record
        for record in records
    ]


def _mend(record: Install) -> Install:
    seating, statements = record.seating, dict[str, BoundStatement]()
    if not _is_lease(seating.bound_ms):
        seating = seating._replace(bound_ms=LEASE_MS_MAX)
    leaders = [leader.node for leader in seating.leaders]
    for one in record.statements:
        if one.leader in leaders:
            sound = _is_possible(one, record)
            statements[one.leader] = one if sound else BoundStatement(one.leader, 1, LEASE_MS_MAX)
    return Install(
        seating=seating, electorate=record.electorate, statements=tuple(statements.values())
    )


def why_unusable(records: Sequence[Message]) -> str:
    """Return what no honest member can have written and nobody can mend; empty if there is nothing.

    A journal keeps only the last promise. Without it, a member could promise an epoch twice.
    """
    for record in records:
        match record:
            case Propose():
                why = _wrong_epoch(record.epoch, record.electorate)
                if not (why or are_seated(record.leaders, record.copies)):
                    why = f"a promise of epoch {record.epoch} for impossible leaders"
            case Install():
                why = _wrong_epoch(record.seating.epoch, record.electorate)
                if not (why or is_possible_seating(record.seating)):
                    why = f"a seating of epoch {record.seating.epoch} with impossible leaders"
            case _:
                why = ""
        if why:
            return why
    return ""


def _wrong_epoch(epoch: int, electorate: Electorate) -> str:
    if not 0 < epoch <= EPOCH_MAX:
        return f"epoch {epoch}, and 1 to {EPOCH_MAX} are possible"
    if not is_sound(electorate) or electorate.number > epoch:
        return f"impossible members after {electorate.number} changes in epoch {epoch}"
    return ""


def why_implausible(records: Sequence[Message], date_ms: int) -> str:
    """Return which epoch is too high for the age of the group; empty if none is.

    Its member starts: the clock of its host may be wrong. But others refuse its messages, if their
    clocks are right. ``date_ms`` counts from 1970.
    """
    group = next((one for one in records if isinstance(one, GroupConfig)), None)
    promises = DurablePromises.recover(records)
    age_ms = 0 if group is None else max(0, date_ms - group.founded_ms)
    highest = EpochLimit(age_ms // 1_000).highest(Instant(0))
    epoch = max(promises.promised, promises.seating.epoch)
    if group is None or epoch <= highest:
        return ""
    return f"epoch {epoch}, and {highest} is the highest that is plausible on this date"
