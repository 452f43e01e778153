"""Maps in the simple model: one list of entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencelock.actors.api.lock_message import Reason
from fencelock.actors.api.map import MAP, DeleteEntry, EntryRequest, PutEntry
from fencelock.actors.api.name import object_name
from fencelock.actors.api.object_request import GuardedRequest

if TYPE_CHECKING:
    from fencelock.verification.model.table import Model


def key_of(session: str) -> str:
    """Return the key of a session; empty if it has none."""
    return session.split("@", maxsplit=1)[0] if "@" in session else ""


Seen = tuple[str, str, bytes, int, str, float]
"""An entry: its map, key, value, version and session, and the time at which it expires."""


@dataclass(eq=False)
class ModelEntry:
    """An entry, and its place among all items that fall due."""

    map: str
    key: str
    value: bytes
    version: int
    session: str
    due: float
    place: int
    payer: str

    @property
    def seen(self) -> Seen:
        return self.map, self.key, self.value, self.version, self.session, self.due


def holds_guard(model: Model, command: GuardedRequest) -> bool:
    """Return whether the guard of a change is held; deny the change if not."""
    if not command.guard:
        return True
    holds = [c for c in model.claims if c.fence and command.guard in c.names]
    firsts = [(c.fence + c.names.index(command.guard), c.span or 1) for c in holds]
    if any(first <= command.fence < first + span for first, span in firsts):
        return True
    who = command.session, command.owner, command.request
    model.deny(*who, command.lock, Reason.NOT_HELD)
    return False


def change(model: Model, command: EntryRequest) -> None:
    """Apply a change that is not a repetition."""
    s, o, r, lock = command.session, command.owner, command.request, command.lock
    if not holds_guard(model, command):
        return
    found = [e for e in model.entries if (e.map, e.key) == (command.map, command.entry_key)]
    version = found[0].version if found else 0
    wrong = command.version is not None and command.version != version
    if wrong or (isinstance(command, DeleteEntry) and not found):
        model.note(s, o, r, lock, ("EntryChanged", lock, s, o, r, version, False))
        return
    if isinstance(command, PutEntry) and _is_over(model, command, found):
        model.deny(s, o, r, lock, Reason.OVERLOADED)
        return
    model.entries = [e for e in model.entries if e not in found]
    value = command.value if isinstance(command, PutEntry) else None
    model.history.add(lock, command.entry_key, value, 0, model.now, model.fences)
    if isinstance(command, PutEntry):
        if command.ephemeral or command.ttl_ms is not None:
            model.places += 1
        due = float("inf") if command.ttl_ms is None else model.now + command.ttl_ms
        owner = s if command.ephemeral else ""
        entry = ModelEntry(
            command.map,
            command.entry_key,
            command.value,
            model.history.version,
            owner,
            due,
            model.places,
            key_of(s),
        )
        model.entries.append(entry)
    model.note(s, o, r, lock, ("EntryChanged", lock, s, o, r, model.history.version, True))


def _is_over(model: Model, command: PutEntry, found: list[ModelEntry]) -> bool:
    """Return whether the key of a put has no room for the entry."""
    key = key_of(command.session)
    mine = [e for e in found if e.payer == key]
    size = len(command.map) + len(command.entry_key) + len(command.value)
    more = size - sum(len(e.map) + len(e.key) + len(e.value) for e in mine)
    quotas = model.quotas
    new = not mine and not quotas.allows(key, "entries")
    return new or (more > 0 and not quotas.allows(key, "bytes", more))


def end(model: Model, entries: list[ModelEntry]) -> None:
    """Remove entries, one after the other."""
    model.entries = [e for e in model.entries if e not in entries]
    for e in entries:
        model.history.add(object_name(MAP, e.map), e.key, None, 0, model.now)
