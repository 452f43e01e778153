"""The rules of detached locks: one is a `KeyHold`, whose value is the digest of a secret.

Invariants:
    nobody-between  From the hold of the client that detaches to that of the client that attaches,
        no claim in the queue is granted the lock. If nobody attaches it in time, the next one is.
    attached-once   A secret attaches one hold at most: `Attach` ends the detached hold.
"""

from __future__ import annotations

from fencelock.actors.api.handover import Attach, Detach, digest_of
from fencelock.actors.api.message import Reason
from fencelock.actors.api.refusal import Cause, Why
from fencelock.actors.table.deadline import ROUNDING_MS
from fencelock.actors.table.key import KeyHold
from fencelock.actors.table.requests import (
    begin,
    begin_claim,
    deny,
    deny_release,
    details_of,
    has_room,
)
from fencelock.actors.table.resource import ClaimDetails
from fencelock.actors.table.state import TableState
from fencelock.actors.table.wire import KeyRecord, Result


def detach(table: TableState, command: Detach, out: list[Result]) -> None:
    """Turn the hold of a client into one of no client. Owner and fence must both be right."""
    owner_state = begin(table, command, out)
    if owner_state is None:
        return
    owner_state.releasing = True
    hold, lock = owner_state.hold, command.lock
    if hold is None or hold.fence != command.fence:
        deny_release(table, owner_state, command, out)
    elif hold.count > 1:
        deny(table, owner_state, Reason.INVALID, Why(Cause.HELD_AGAIN, (hold.count,)), out)
    else:
        table.changing = True
        owner_state.outcome = released = owner_state.released(0)
        out.append(released)
        key = KeyRecord(command.digest, hold.account.name, False, None, hold.holder)
        with table.resources[lock].kept():
            table.end_hold(hold, out)
        details = ClaimDetails(", ".join(filter(None, (hold.label, "detached"))), key=key)
        table.grant_keys((lock,), details, table.time_ms + command.ttl_ms + ROUNDING_MS, out)


def attach(table: TableState, command: Attach, out: list[Result]) -> None:
    """Turn a detached hold into one of a client, if the secret is right."""
    details = details_of(command)
    owner_state = begin_claim(table, command, out)
    if owner_state is None:
        return
    resource = table.resources.get(command.lock)
    hold = None if resource is None else next(iter(resource.holds), None)
    digest = digest_of(command.secret)
    if not (isinstance(hold, KeyHold) and hold.key.detached_by and hold.key.value == digest):
        why = Why(Cause.NOT_DETACHED, obstacle=table.state_of(command.lock))
        deny(table, owner_state, Reason.NOT_HELD, why, out)
        return
    assert resource is not None
    hold.account.claims -= 1  # The new hold takes its room.
    table.claims -= 1
    has = has_room(table, owner_state, out)
    hold.account.claims += 1
    table.claims += 1
    if has:
        with resource.kept():
            table.end_hold(hold, out)
        table.grant(owner_state, details, 1, 1, 1, out)
