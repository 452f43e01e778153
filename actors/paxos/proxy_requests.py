"""Takes requests of clients, and has them proposed to the log."""

from __future__ import annotations

from fencelock.actors.api.message import Acquire, Alive, KeepAlive, Reason, Release
from fencelock.actors.api.request import Command
from fencelock.actors.api.session_message import Evict, Open
from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Address, Instant, node_of
from fencelock.actors.paxos.proxy_clients import (
    GUEST_ERRANDS_MAX,
    RemoteClient,
    RemoteClients,
    why_foreign,
)
from fencelock.actors.paxos.proxy_in_flight import (
    ERRANDS_MAX,
    InFlightRequests,
    is_full,
)
from fencelock.actors.paxos.proxy_replies import ProxyReplies
from fencelock.actors.paxos.proxy_wording import refuse


class ProxyRequests:
    """Takes requests in a named session.

    Args:
        node: this node.
        in_flight_requests: takes the commands.
        guests: the clients in other processes.
        answering: knows which node leads.

    """

    def __init__(
        self,
        node: str,
        in_flight_requests: InFlightRequests,
        guests: RemoteClients,
        answering: ProxyReplies,
    ) -> None:
        self.node = node
        self.in_flight_requests = in_flight_requests
        self.guests = guests
        self.answering = answering

    def admit(self, asker: Address, session: str, now: Instant) -> RemoteClient | None:
        """Return the client that is charged for a request in ``session``.

        The callers inside this process are one, in the session of the node. None for a role of this
        node that uses another session.

        Raises:
            InvalidRequestError: the sender may not use that session; the text says why.

        """
        guest = self.guests.again(asker, session, now)
        if guest is not None:
            return guest
        client = node_of(asker)
        if client == self.node:
            named = session.startswith(f"{client}/")
            return self.guests.hear(client, asker, session, now) if named else None
        guest = self.guests.by_id.get(client)
        if guest is None or guest.session != session:
            problem = why_foreign(client, session)
            if problem:
                raise InvalidRequestError(problem)
        return self.guests.hear(client, asker, session, now)

    def ask(self, asker: Address, asked: Command, now: Instant) -> Effects:
        """Take a request, or note that it was sent again."""
        session, guest = asked.session, self.guests.last
        try:
            # Usually the last client sends again: `RemoteClients.again`, inlined.
            if guest is None or guest.session != session or guest.asker != asker:
                guest = self.admit(asker, session, now)
            else:
                guest.heard_at = now
            if not session or ("." not in session and not isinstance(asked, Open | Evict)):
                return self.without_session(asker, asked)
            asked.check_new()
        except InvalidRequestError as error:
            return [refuse(asker, asked, Reason.INVALID, str(error)), Observe("proxy.refused")]
        in_flight_requests, key = self.in_flight_requests, asked.key
        by_key = in_flight_requests.by_key
        in_flight_request = by_key.get(key)
        if in_flight_request is not None:
            if type(in_flight_request.request) is type(asked):
                in_flight_request.asker, in_flight_request.request = asker, asked
                return ()
            in_flight_requests.end(in_flight_request)  # The client has used the number again.
        if len(by_key) >= ERRANDS_MAX and in_flight_requests.is_full(eases=asked.EASES):
            return self.overloaded(asker, asked, f"{ERRANDS_MAX} requests")
        its = 0 if guest is None else guest.in_flight_requests
        if its >= GUEST_ERRANDS_MAX and is_full(its, GUEST_ERRANDS_MAX, eases=asked.EASES):
            return self.overloaded(asker, asked, f"{GUEST_ERRANDS_MAX} of this client")
        if not isinstance(asked, Acquire | Release):
            in_flight_requests.make_room(asked, key, guest)
        in_flight_request = in_flight_requests.add(asked, key, now, asker=asker, guest=guest)
        gathered = in_flight_requests.gathered
        if not gathered:
            return in_flight_requests.gather(in_flight_request)
        gathered.append(in_flight_request)
        return ()

    def without_session(self, asker: Address, asked: Command) -> Effects:
        """Answer a request in a name that is not a session's id, since ids have a number."""
        if isinstance(asked, KeepAlive):
            alive = Alive(
                session=asked.session,
                node=self.node,
                request=asked.request,
                master=self.answering.master,
            )
            return [Send(asker, alive)]
        if not asked.session:
            text = f"session is empty; the role 'session' of {self.node} has one for its callers"
            return [refuse(asker, asked, Reason.INVALID, text), Observe("proxy.refused")]
        text = f"{asked.session[:80]!r} is no session, but a name: open one under it"
        return [refuse(asker, asked, Reason.SESSION_EXPIRED, text), Observe("proxy.refused")]

    def overloaded(self, asker: Address, asked: Command, limit: str) -> Effects:
        """Refuse a request because a limit is reached."""
        text = f"{limit} are under way at node {self.node}, its limit; nothing was done"
        return [refuse(asker, asked, Reason.OVERLOADED, text), Observe("proxy.refused")]
