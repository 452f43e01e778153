"""Members that are silent, and the target size: changes that a node starts by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from fencelock.actors.api.membership_message import ChangeMembers, MemberAction
from fencelock.actors.effect import Effect
from fencelock.actors.error import MembershipError
from fencelock.actors.membership_changes import MemberChanges
from fencelock.actors.message import Instant, ms_between
from fencelock.actors.role_message import Level, notice

MEMBERS_CHECK_MS = 250
"""Interval at which the members are checked (ms)."""

PAUSED_NODE_MS = 4 * MEMBERS_CHECK_MS
"""A check later than this after the last one shows that this node itself was paused (ms): then the
members were silent because nobody listened."""

QUIET_MS = 10_000
"""Time for which it leaves the members alone after an operator asked for a change (ms)."""


class MemberTarget(NamedTuple):
    """The wanted number of members, and how long silent ones are waited for."""

    members: int = 0
    """0 if only operators change the members."""
    silent_ms: int = 300_000
    """Time after which a member that does not answer the deciding node is replaced (ms)."""
    down_ms: int = 30_000
    """Time after which a silent member is called down (ms)."""


NO_TARGET = MemberTarget()


class Wish(NamedTuple):
    """A change that the deciding node asks for, or would ask for if it could."""

    request: ChangeMembers | None
    """None if no node is there that could become a member."""
    why: str


class GroupFacts(Protocol):
    """The deciding node's knowledge of the others."""

    node: str

    def votes(self, member: str) -> bool: ...

    def willing(self, gone: str, members: Sequence[str]) -> tuple[str, int] | None:
        """Return the node that should become a member, with its journal; None if there is none.

        A member ``gone`` that lost its journal is willing to return, but only if there is no other
        node: to replace it by itself, the group has to do without it for a moment.
        """
        ...


def wish_of(
    members: Sequence[str],
    target: MemberTarget,
    facts: GroupFacts,
    silent_ms: Callable[[str], int],
) -> Wish | None:
    """Return the next change that brings the group nearer to ``target``, None if it is there.

    Only the deciding node's own links count. A member that answers it is not replaced, whatever
    other nodes say of it. ``silent_ms`` returns for how long a member has not answered (ms).
    """
    count = len(members)
    size = f"target_members is {target.members}"
    if count < target.members:
        why = f"there {'is 1 member' if count == 1 else f'are {count} members'}, and {size}"
        return _joining(MemberAction.JOIN, "", why, members, facts)
    silent = [one for one in members if not facts.votes(one) and silent_ms(one) >= target.silent_ms]
    if not silent:
        return None
    gone = max(silent, key=lambda one: (silent_ms(one), one))
    why = f"{gone} has not answered {facts.node} for {target.silent_ms / 1_000:g} s"
    if count > target.members:
        request = ChangeMembers(action=MemberAction.REMOVE, node=gone)
        return Wish(request, f"{why}, and {size}: {gone} is to be removed")
    return _joining(MemberAction.REPLACE, gone, why, members, facts)


def _joining(
    action: MemberAction, gone: str, why: str, members: Sequence[str], facts: GroupFacts
) -> Wish:
    """Return the wish for a new member, in place of ``gone`` if that is not empty."""
    found = facts.willing(gone, members)
    if found is None:
        return Wish(None, f"{why}, but no node is there that could become a member")
    new, journal = found
    if action is MemberAction.JOIN:
        return Wish(ChangeMembers(action=action, node=new), f"{why}: {new} is to become a member")
    journal = journal if new == gone else 0
    request = ChangeMembers(action=action, node=gone, replacement=new, journal=journal)
    return Wish(request, f"{why}: {new} is to replace it")


class TargetKeeper:
    """Notes which members are down, and takes the steps towards the target while its node decides.

    A ``silence_ms`` returns how long a member has been silent, of a time for which it was watched
    (both in ms).
    """

    def __init__(self, node: str, target: MemberTarget) -> None:
        self.node, self.target = node, target
        self.checked_at = Instant(0)
        self.down: dict[str, None] = {}
        self.watched_since: dict[str, Instant] = {}
        """The time since which this node has watched each other member."""
        self.decides_since: dict[tuple[str, int], Instant] = {}
        """While this node decides, the time since which it has known each member and journal."""
        self.quiet_until = Instant(0)
        """Until then the members are left to the operator who asked for a change."""
        self.wished = ""
        """The last wish that was logged, empty if there is none."""

    def check(self, now: Instant) -> None:
        """Begin a check. After a pause of this node, all silence counts anew."""
        if ms_between(self.checked_at, now) > PAUSED_NODE_MS:
            self.decides_since, self.watched_since = {}, {}
        self.checked_at = now

    def rest(self) -> None:
        """Forget the steps that were begun: another node decides."""
        self.decides_since, self.wished = {}, ""

    def note_down(
        self, members: Iterable[str], silence_ms: Callable[[str, int], int], now: Instant
    ) -> list[Effect]:
        """Note which ``members`` have been silent for too long; log each change.

        There are none if another node watches them.
        """
        others = [one for one in members if one != self.node]
        since = self.watched_since = {one: self.watched_since.get(one, now) for one in others}
        silent_ms = {one: silence_ms(one, ms_between(at, now)) for one, at in since.items()}
        before, after_ms = self.down, self.target.down_ms
        self.down = {one: None for one in others if silent_ms[one] >= after_ms}
        lost = f"is down: it has been silent for {after_ms / 1_000:g} s"
        changes = [(one, "member_down", lost) for one in self.down if one not in before]
        back = [one for one in before if one in since and one not in self.down]
        changes += [(one, "member_up", "is up again") for one in back]
        return [
            notice(
                self.node,
                Level.WARNING if event == "member_down" else Level.INFO,
                f"{one} {text}",
                (("event", event), ("member", one)),
            )
            for one, event, text in changes
        ]

    def approach(
        self,
        changes: MemberChanges,
        facts: GroupFacts,
        silence_ms: Callable[[str, int], int],
        now: Instant,
    ) -> list[Effect]:
        """Take the next step, if one is due; log why, once. Silence counts from when it decides."""
        since = self.decides_since = {
            (name, seat.journal): self.decides_since.get((name, seat.journal), now)
            for name, seat in changes.seats.items()
        }
        if now < self.quiet_until or changes.pending():
            return []
        silent_ms = {name: silence_ms(name, ms_between(at, now)) for (name, _), at in since.items()}
        wish = wish_of(changes.members, self.target, facts, silent_ms.__getitem__)
        level, text, effects = Level.WARNING, "" if wish is None else wish.why, list[Effect]()
        if wish is not None and wish.request is not None:
            try:
                effects += changes.step(wish.request).effects
                level = Level.INFO
            except MembershipError as error:
                text = f"{wish.why}, but {error}"
        if text and text != self.wished:
            effects.append(notice(self.node, level, text))
        self.wished = text
        return effects
