"""The cost of an exception that only a bug of ours can raise: a request, a command, or the node.

An exception says that we were wrong, and not where. What else is wrong then decides its cost:

- A frame is decoded, an effect is encoded, a role is described, a metric is rendered. Nothing is
  changed meanwhile. The cost is that frame, effect, description or metric.
- The proxy checks or takes the request of a client. Its notes about requests in flight may be half
  changed. They promise nothing: the log, the leaders or the server decide. The cost is that
  request, which is refused with `Reason.INTERNAL`.
- A role reads its state for a request, or the proxy makes a reply of what was read. Nothing is
  changed. The cost is that request.
- A command is applied to the table, between two changes. The table is whole. The cost is that
  command, on every member alike (`fencelock.actors.table.poison`).
- A command is applied to the table, in the middle of a change. The cost is every member, at that
  slot, until an operator skips it.
- Another role handles an event, or a record is written. A promise, a vote, a ticket or a queue may
  be half changed. The cost is the node.

The last two stop: safety comes before availability. A role that goes on with half of a change
may break a promise that others rely on, and a restart recovers the state from the journal. A record
that cannot be written must stop the node, because later effects depend on it.

An `AssertionError` is no exception to this. Where nothing is changed it costs the request as well:
a node that stopped for it could be stopped by any stranger, at each attempt. If an invariant is
broken, the role that owns it stops at its next change. In the table any assertion that fails is
such a change: its commands are in the log already, see ``actors/table/poison.py``.

The host logs what goes on, with the traceback, once an interval for each place, and counts it as
`host.fault`. The simulator fails the seed. Nothing here replaces a limit: every field of
a message is checked on arrival, and ``tests/system/test_fuzz.py`` sends each field at its extremes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fencelock.actors.api.lock_message import Reason, refused
from fencelock.actors.api.request import Request
from fencelock.actors.effect import Effect, Fault, Observe, Send
from fencelock.actors.message import Address

A = TypeVar("A")

INTERNAL_TEXT = (
    "a bug in fencelock made {where} refuse {what}: nothing was done. Sending it again gives the "
    "same result. The traceback is in the log of the node"
)
"""The text of a refusal with `Reason.INTERNAL`."""


def internal(sender: Address, request: Request, node: str, error: Exception) -> list[Effect]:
    """Refuse ``request`` of ``sender``, since serving it at ``node`` raised ``error``."""
    what = type(request).__name__
    text = INTERNAL_TEXT.format(where=f"node {node}", what=what)
    return [
        Send(sender, refused(request, Reason.INTERNAL, text)),
        Observe("proxy.internal"),
        Fault(f"{request!r} of {sender}", error),
    ]


def reading(doing: str, read: Callable[[], A]) -> A | Fault:
    """Return what ``read``, which changes nothing, returns; a fault if it raises."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001  # Only a bug of ours can raise here.
        return Fault(doing, error)
