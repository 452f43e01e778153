"""Keeping a group at its target size: which change of the members the leader asks for by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fencelock.actors.api.membership_message import ChangeMembers, MemberAction
from fencelock.actors.paxos.config import View
from fencelock.actors.paxos.message import UNWILLING
from fencelock.actors.paxos.node_facts import Facts

CHECK_MS = 250
"""Interval at which a leader checks its members (ms)."""

PAUSE_MS = 4 * CHECK_MS
"""A check later than this after the last one shows that the leader itself was paused (ms): then
the members were silent because nobody listened."""

QUIET_MS = 10_000
"""Time for which it leaves the members alone after an operator asked for a change (ms)."""


CLOSE_SLOTS = 1_000
"""Slots that a node may lack when it is chosen (about a second of load). It becomes a member once
it lacks no more than for a join."""


class MemberTarget(NamedTuple):
    """The wanted number of members."""

    members: int = 0
    """0 if only operators change the members."""
    silent_ms: int = 300_000
    """Time after which a member that does not answer the leader is replaced (ms)."""


NO_TARGET = MemberTarget()


class Wish(NamedTuple):
    """A change that the leader asks for, or would ask for if it could."""

    request: ChangeMembers | None
    """None if no node is there that could become a member."""
    why: str


def wish_of(
    view: View, target: MemberTarget, facts: Facts, silent_ms: Callable[[str], int]
) -> Wish | None:
    """Return the next change that brings ``view`` nearer to ``target``, None if it is there.

    Only the leader's own links count. A member that answers the leader is not replaced, whatever
    other nodes say of it.

    Args:
        view: the members.
        target: the wanted number of members.
        facts: the leader's knowledge of other nodes.
        silent_ms: returns the time for which a member has not answered the leader (ms).

    """
    count = len(view.members)
    size = f"target_members is {target.members}"
    if count < target.members:
        why = f"there {'is 1 member' if count == 1 else f'are {count} members'}, and {size}"
        return _joining(MemberAction.JOIN, "", why, view, facts)
    silent = [
        one for one in view.members if not facts.votes(one) and silent_ms(one) >= target.silent_ms
    ]
    if not silent:
        return None
    gone = max(silent, key=lambda one: (silent_ms(one), one))
    why = f"{gone} has not answered {facts.node} for {target.silent_ms / 1_000:g} s"
    if count > target.members:
        request = ChangeMembers(action=MemberAction.REMOVE, node=gone)
        return Wish(request, f"{why}, and {size}: {gone} is to be removed")
    return _joining(MemberAction.REPLACE, gone, why, view, facts)


def _joining(action: MemberAction, gone: str, why: str, view: View, facts: Facts) -> Wish:
    """Return the wish for a new member, in place of ``gone`` if that is not empty."""
    new = _first_willing(gone, view, facts)
    if new is None:
        return Wish(None, f"{why}, but no node is there that could become a member")
    if action is MemberAction.JOIN:
        return Wish(ChangeMembers(action=action, node=new), f"{why}: {new} is to become a member")
    report = facts.learner(new)
    journal = report.journal if report is not None and new == gone else 0
    request = ChangeMembers(action=action, node=gone, replacement=new, journal=journal)
    return Wish(request, f"{why}: {new} is to replace it")


def _first_willing(gone: str, view: View, facts: Facts) -> str | None:
    """Return the node that should become a member, None if there is none.

    The smallest of priority, random number, address and name comes first. A member that lost its
    journal is willing to return, but only if there is no other node: to replace it by itself, the
    group has to do without it for a moment.
    """
    willing = [
        (node == gone, report.priority, report.life, report.endpoint, node)
        for node, known in facts.learners.items()
        if (report := facts.learner(node)) is not None
        and report.ready
        and report.endpoint
        and report.priority < UNWILLING
        and known.lag <= CLOSE_SLOTS
        and (node == gone or node not in view.members)
    ]
    return min(willing)[-1] if willing else None
