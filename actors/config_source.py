"""The role that gives the cluster's configuration to a node which is in no file.

``fencelock serve --join ADDRESS`` asks it, through the proxy of the node at that address; see
``cluster/node/joining.py``. It has no secret: a node brings its keys with it.
"""

from __future__ import annotations

from fencelock.actors.api.lock_message import Reason, Refused
from fencelock.actors.api.membership_message import is_endpoint
from fencelock.actors.api.role_request import ReadConfig, SharedConfig
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import Address, Instant, Local, address_of, node_of
from fencelock.actors.role import Host, Role, Summary

DIALS_MAX = 8
"""Addresses that a node tries at a time, each on a thread of its own."""


class Dial(Local):
    """To the host, at ``node/dialler``: try to connect to ``endpoint``, once."""

    number: int
    endpoint: str


class Dialled(Local):
    """From the host: why the endpoint of that `Dial` cannot be reached; empty if it can."""

    EASES = True

    number: int
    unreached: str


class ConfigSource(Role[ReadConfig | Dialled]):
    """Gives the shared configuration to nodes whose addresses were tried.

    Args:
        text: the shared configuration, as in `SharedConfig`; empty if there is no file.

    """

    def __init__(self, address: Address, host: Host, *, text: str) -> None:
        super().__init__(address, host)
        self.text = text
        self.number = 0
        self.waiting: dict[int, Address] = {}
        """The requests whose addresses are tried, by number."""

    def handle(self, sender: Address, event: ReadConfig | Dialled, now: Instant) -> Effects:
        if isinstance(event, Dialled):
            asking = self.waiting.pop(event.number, None)
            reply = SharedConfig(text=self.text, unreached=event.unreached)
            return () if asking is None else (Send(asking, reply),)
        if not self.text:
            detail = "this node was not started from a configuration file: name another one"
            return (_refusal(sender, Reason.UNSUPPORTED, detail),)
        if not is_endpoint(event.endpoint):
            detail = f"endpoint is {event.endpoint[:80]!a}: one like tcp://10.0.0.4:4040 is wanted"
            return (_refusal(sender, Reason.INVALID, detail),)
        if len(self.waiting) >= DIALS_MAX:
            detail = f"{DIALS_MAX} addresses are tried already; try again in a moment"
            return (_refusal(sender, Reason.OVERLOADED, detail),)
        self.number += 1
        self.waiting[self.number] = sender
        dial = Dial(number=self.number, endpoint=event.endpoint)
        return (Send(address_of(node_of(self.address), "dialler"), dial),)

    def summary(self) -> Summary:
        return (("tried", len(self.waiting)),)


def _refusal(to: Address, reason: Reason, detail: str) -> Send:
    return Send(to, Refused(lock="", reason=reason, detail=detail))
