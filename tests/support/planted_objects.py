"""A planted bug for objects that callers change or await."""

from __future__ import annotations

from typing import Any

from fencelock.actors.table.table_state import TableState


def repetitions_count(sound: Any) -> Any:
    """Return ``begin_update`` with a bug: it treats a repeated request as a new one."""

    def broken(table: TableState, command: Any, out: Any) -> Any:
        session = table.sessions.by_id.get(command.session)
        states: dict[Any, Any] = {} if session is None else session.owner_states
        owner_state = states.get((command.owner, command.lock))
        if owner_state is not None and owner_state.wait is None:
            owner_state.request -= owner_state.request == command.request
        return sound(table, command, out)

    return broken
