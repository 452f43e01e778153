"""The watch: checks whether the lock server is alive, and queries it for holders."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from fencelock.actors.api.lock_message import Absence
from fencelock.actors.central.wire import (
    Peek,
    Peeked,
    PeekRetry,
    Probe,
    Probed,
    ProbeServer,
    holder_fits,
)
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, ms_between, node_of
from fencelock.actors.proxy.event import LockDescription, Ready
from fencelock.actors.role import Host, Role, Summary

PROBE_FIRST_MS = 100
"""Interval of probes until the server first answers (ms): short, for a cluster that starts."""

SERVER_PROBE_MS = 1_000
"""Interval of probes after that (ms)."""

SILENT_SERVER_MS = 5_000
"""A server silent for this long counts as away (ms): five lost probes are no accident."""

PEEK_RETRY_MS = 100
"""Timeout of one `Peek` (ms)."""

PEEKS_MAX = 5
"""Number of attempts before answering without the server: half a second in all."""

SERVER_QUERIES_MAX = 1_000
"""Maximum queries that wait for the server; further ones are answered at once, without it."""

QUERY_NUMBERS = 1 << 31
"""Queries of one life of a node, and number of lives that are distinguished."""


class PendingView(NamedTuple):
    """A query that waits for the server."""

    view: LockDescription
    began: Instant
    peeks: int


ServerWatchEvent = LockDescription | Peeked | Probed | PeekRetry | ProbeServer


class ServerWatch(Role[ServerWatchEvent]):
    """Answers the proxy's queries, and notifies it whether the server can be reached.

    The server's answer to a `Peek` is true at one instant between request and answer, so a
    query is linearizable. The queries of each life of the node have numbers of their own: an
    answer to an earlier life is never taken for an answer to this one.

    Args:
        proxy: receives `LockDescription` and `Ready`.
        server: the address of the `LockServer`.
        boot: the id of this life of the node.

    """

    def __init__(
        self, address: Address, host: Host, *, proxy: Address, server: Address, boot: int = 0
    ) -> None:
        super().__init__(address, host)
        self.proxy = proxy
        self.server = server
        self.first_query = (boot % QUERY_NUMBERS) * QUERY_NUMBERS
        self.began = Instant(0)
        self.replied_at: Instant | None = None
        self.ready = False
        self.queries: dict[int, PendingView] = {}

    def begin(self, now: Instant) -> Effects:
        self.began = now
        return (self._not_ready(now), *self._probe())

    def handle(self, sender: Address, event: ServerWatchEvent, now: Instant) -> Effects:
        """Process one event; the server's messages count only if the server sent them."""
        match event:
            case LockDescription():
                if len(self.queries) >= SERVER_QUERIES_MAX:
                    why = f"{SERVER_QUERIES_MAX} questions wait for the lock server, the limit"
                    return (Observe("central.queries_full"), self._unknown(event, (), why))
                self.queries[event.query] = PendingView(event, now, 0)
                return self._peek(event.query)
            case Peeked():
                return self._on_peeked(sender, event, now)
            case Probed():
                if sender != self.server:
                    return (Observe("central.probed_malformed"),)
                return self._note_reply(now)
            case PeekRetry():
                return self._on_peek_retry(event, now)
            case ProbeServer():
                if self.ready and self._silent_ms(now) > SILENT_SERVER_MS:
                    self.ready = False
                    return (Observe("central.server_silent"), self._not_ready(now), *self._probe())
                return self._probe()

    def summary(self) -> Summary:
        return (
            ("server", self.server),
            ("answers", self.ready),
        )

    def _peek(self, query: int) -> Effects:
        pending = self.queries[query]
        self.queries[query] = pending._replace(peeks=pending.peeks + 1)
        peek = Peek(lock=pending.view.lock, query=self.first_query + query)
        return (Send(self.server, peek), Wake(PEEK_RETRY_MS, PeekRetry(query=query)))

    def _on_peek_retry(self, retry: PeekRetry, now: Instant) -> Effects:
        pending = self.queries.get(retry.query)
        if pending is None:
            return ()  # Answered meanwhile.
        if pending.peeks < PEEKS_MAX:
            return self._peek(retry.query)
        del self.queries[retry.query]
        silent: tuple[Absence, ...] = ()
        if self.replied_at is None or self.replied_at < pending.began:
            silent = (Absence(node_of(self.server), self._silent_ms(now)),)
        why = f"node {node_of(self.server)}, which runs the lock server, did not answer"
        return (Observe("central.looked_in_vain"), self._unknown(pending.view, silent, why))

    def _on_peeked(self, sender: Address, peeked: Peeked, now: Instant) -> Effects:
        if sender != self.server or not holder_fits(peeked.holder):
            return (Observe("central.peeked_malformed"),)
        effects = self._note_reply(now)
        query = peeked.query - self.first_query
        pending = self.queries.get(query)
        if pending is None or pending.view.lock != peeked.lock:
            return effects  # Answered already.
        del self.queries[query]
        view, holder = pending.view, peeked.holder
        if view.holder is not None and holder is not None and view.holder.fence == holder.fence:
            holder = view.holder  # Of several owners of a session, this node knows the right one.
        return (*effects, Send(self.proxy, replace(view, holder=holder)))

    def _unknown(self, view: LockDescription, silent: tuple[Absence, ...], why: str) -> Send:
        """Reply with this node's own knowledge, since the server did not name the holder."""
        return Send(self.proxy, replace(view, waits_for=silent, unknown=why))

    def _note_reply(self, now: Instant) -> list[Effect]:
        self.replied_at = now
        if self.ready:
            return []
        self.ready = True
        return [Send(self.proxy, Ready(ready=True, detail="ready"))]

    def _probe(self) -> Effects:
        after_ms = PROBE_FIRST_MS if self.replied_at is None else SERVER_PROBE_MS
        return (Send(self.server, Probe()), Wake(after_ms, ProbeServer()))

    def _not_ready(self, now: Instant) -> Send:
        node = node_of(self.server)
        detail = f"node {node}, which runs the lock server, has not answered yet"
        if self.replied_at is not None:
            silent_ms = self._silent_ms(now)
            detail = f"node {node}, which runs the lock server, is silent for {silent_ms} ms"
        return Send(self.proxy, Ready(ready=False, detail=detail))

    def _silent_ms(self, now: Instant) -> int:
        return ms_between(self.began if self.replied_at is None else self.replied_at, now)
