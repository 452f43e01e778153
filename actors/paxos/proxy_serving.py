"""Tracks whether a node's proxy can have requests decided, and tells clients. Pure."""

from __future__ import annotations

from fencelock.actors.api.name import OWNER_BYTES_MAX
from fencelock.actors.api.probe_message import Probe, ProbeReply
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address
from fencelock.actors.paxos.proxy_clients import RemoteClient
from fencelock.actors.paxos.proxy_in_flight import InFlightRequests


class Serving:
    """Answers probes, and notifies waiting clients when the answer changes.

    Args:
        node: this node.
        in_flight_requests: the requests that clients wait for.

    """

    def __init__(self, node: str, in_flight_requests: InFlightRequests) -> None:
        self._node = node
        self._errands = in_flight_requests
        self._leader = ""
        self._isolated = False

    def reply(self, asker: Address, probe: Probe) -> list[Effect]:
        """Answer a probe."""
        if len(probe.session) > OWNER_BYTES_MAX:
            return [Observe("proxy.session_malformed")]
        reply = self._reply(probe.session, probe.request)
        return [Send(asker, reply), Observe("proxy.probed")]

    def follow(self, leader: str) -> list[Effect]:
        """Note which node leads, empty if unknown; notify clients if that changes the answer."""
        before = self._serves()
        self._leader = leader
        return self._tell(before)

    def isolate(self, *, isolated: bool) -> list[Effect]:
        """Note whether this node leads without a majority; notify clients of a change."""
        before = self._serves()
        self._isolated = isolated
        return self._tell(before)

    def _serves(self) -> bool:
        return bool(self._leader) and not self._isolated

    def _tell(self, before: bool) -> list[Effect]:
        if before == self._serves():
            return []
        waiting: dict[RemoteClient, None] = {
            in_flight_request.guest: None
            for in_flight_request in self._errands.by_key.values()
            if in_flight_request.guest is not None
        }
        return [Send(guest.asker, self._reply(guest.session, 0)) for guest in waiting]

    def _reply(self, session: str, request: int) -> ProbeReply:
        return ProbeReply(
            session=session,
            node=self._node,
            serving=self._serves(),
            leader=self._leader,
            request=request,
        )
