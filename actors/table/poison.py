"""Commands that make the table raise, and what that costs.

Every member applies the same commands to the same table, so an exception that depends on these
alone is raised by all members, at the same place. A *poison command* would stop all of them, and
again at each start, because the log does not forget it.

A rule checks first and changes after. While `TableState.changing` is false, the table is whole:
nothing that belongs together was changed in part. What raises then is the refusal
`Reason.INTERNAL` on all members alike. While it is true, the table is damaged, and the member
stops with a `PoisonError`. ``fencelock repair --skip SLOT`` writes a `Skip` into each journal. The
member then copies its table before that slot, and applies the slot as always. Only if that
raises does it return to the copy, and refuse the commands that raised. So a skip of a sound slot
changes nothing, and members with and without it never differ: a member without it stops again.

`LOCAL_ERRORS` do not count: they depend on the process. Such an error stops the one member, as a
crash would, and its journal has everything. All others come from operations on values, and the
values are the same on all members. If two versions of Python
ever disagree whether an operation raises, one member refuses what another performs: their
fingerprints contain the reasons of refusals, so the comparison of members finds it.

An `AssertionError` says that an invariant is broken: the table is damaged whatever `changing` says.
So does an `InvalidRequestError` while `changing` is true: a rule has checked too late.
"""

from __future__ import annotations

from fencelock.actors.api.name import titled
from fencelock.actors.api.operator_message import Evicted
from fencelock.actors.api.request import Command, RequestKey

LOCAL_ERRORS = (MemoryError, RecursionError, OSError)
"""The exceptions that depend on the process, and not only on the command and the table."""

ERROR_CHARS_MAX = 200
"""Maximum length of an exception in the text: the traceback has all of it."""

SKIPPER = "fencelock repair --skip"
"""Begins the name of the operator in the audit's entry about a skipped command."""

NEXT_STEP = (
    "Every member stops at this slot, now and at each start. Stop all members, run "
    '"fencelock repair --id NODE --skip {slot}" on the machine of each of them, and start them '
    "again: they refuse this command, and go on. Please report this"
)

NO_SKIP = (
    "Every member stops at this slot, now and at each start, and no skip helps, because what falls "
    "due stays due. Install a release without this bug, and please report it. Of backups, only one "
    'that is older than what fell due is free of it ("fencelock restore")'
)


class PoisonError(Exception):
    """A command, or something that fell due, raised in the middle of a change of the table.

    Args:
        command: the command, or None if something fell due.
        error: what was raised.
        place: the place of the command among the commands of its slot.
        slot: the slot, 0 until it is known.

    """

    def __init__(
        self, command: Command | None, error: Exception, place: int = 0, slot: int = 0
    ) -> None:
        self.command, self.error, self.place, self.slot = command, error, place, slot
        step = (NO_SKIP if command is None else NEXT_STEP).format(slot=slot)
        text = repr(error)
        short = text if len(text) <= ERROR_CHARS_MAX else f"{text[:ERROR_CHARS_MAX]}..."
        super().__init__(
            f"slot {slot}: {named(command)} raised {short} in the middle of a change of the "
            f"table. {step}"
        )

    def at(self, slot: int) -> PoisonError:
        return PoisonError(self.command, self.error, self.place, slot)


def named(command: Command | None) -> str:
    if command is None:
        return "what fell due"
    _, _, lock, request = command.key
    about = f" of {titled(lock)}" if lock else ""
    return f"{type(command).__name__}{about} (request {request})"


def skipped_in(entry: Evicted) -> tuple[str, RequestKey] | None:
    """Return the class and the key of the command that an entry of the audit says was skipped."""
    if not entry.operator.startswith(SKIPPER):
        return None
    holder = entry.holder
    return holder.label, (holder.session, holder.owner, entry.lock, entry.request)
