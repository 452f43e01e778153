"""Checks on a client's request at the proxy of a protocol without a log."""

from __future__ import annotations

from fencelock.actors.api.message import Acquire, Cancel, Inspect, Reason, Release
from fencelock.actors.api.name import (
    OWNER_BYTES_MAX,
    check_lock_name,
    check_new_lock_name,
    check_owner,
    check_request,
    check_text,
    check_wait,
)
from fencelock.actors.api.session_message import DisownHold, End, Evict, ListLocks, Open
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Address, node_of

Checked = Acquire | Release | Cancel | Inspect | DisownHold | Open | End | ListLocks | Evict


def no_bounded_reads(protocol: str) -> str:
    """Return the reason why a read with a bound on its age is refused."""
    return (
        f"{protocol} cannot prove how old the knowledge of a node is, so it has no local reads "
        "with a bound (max_age); paxos has them"
    )


def problem_of(node: str, protocol: str, asker: Address, request: Checked) -> tuple[Reason, str]:
    """Return the reason and text of a refusal of ``request``; the text is empty if it is valid."""
    client = node_of(asker)
    later = isinstance(request, Open) and request.session.startswith(f"{client}~")
    if client not in (node, request.session) and not later:
        text = f"session {request.session[:80]!r} is not the client {client!r} itself"
        return Reason.INVALID, text
    if not request.session and not isinstance(request, Inspect | ListLocks | Evict):
        return Reason.INVALID, f"session is empty; the role 'session' of {node} has one"
    try:
        check_owner(request.session)
        if not isinstance(request, Open | End | ListLocks):
            check_lock_name(request.lock)
        if isinstance(request, Acquire | Release | Cancel):
            check_owner(request.owner)
        if isinstance(request, Acquire):
            check_new_lock_name(request.lock)
            check_wait(request.wait_ms)
            check_request(request.request)
        if isinstance(request, Evict):
            check_text("operator", request.operator, OWNER_BYTES_MAX)
    except InvalidRequestError as problem:
        return Reason.INVALID, str(problem)
    if isinstance(request, Acquire) and request.limit != 1:
        text = f"limit {request.limit} asks for a lock that its owner may hold more than once"
        return Reason.UNSUPPORTED, f"{text}; {protocol} has none, paxos has"
    if isinstance(request, Inspect) and request.age_ms is not None:
        return Reason.UNSUPPORTED, no_bounded_reads(protocol)
    return Reason.INVALID, ""
