"""The watchdog of a node's turns: it logs slow turns, long sleeps and dropped frames."""

from __future__ import annotations

from collections.abc import Callable

from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.cluster.host.scheduler import SLOW_NS, Scheduler
from fencelock.cluster.log import Repeated
from fencelock.transport.log import note


class Watchdog:
    """Logs slow turns and sleeps, and once per interval the dropped frames.

    Args:
        node: whose log it is.
        scheduler: has the clock, the counters and the time of syncs.
        unheard: see `fencelock.cluster.host.dispatcher.Dispatcher`.

    """

    def __init__(self, node: str, scheduler: Scheduler, unheard: Callable[[], list[str]]) -> None:
        self._node = node
        self._unheard = unheard
        self._scheduler = scheduler
        self._slow_turns = Repeated(node, scheduler.now)
        self.report_at = scheduler.now()
        """From this on `look` reports dropped frames."""
        self._dropped: dict[str, int] = {}

    def look(self, now: Instant, took_ns: int) -> None:
        """Look at a turn, or a sleep, that ended at ``now``.

        Args:
            now: the time.
            took_ns: how long the turn took without its syncs, or the sleep beyond its limit (ns).

        """
        if took_ns > SLOW_NS:
            self._slow_turns.add(took_ns // NS_PER_MS, SLOW_TURN, event="slow_turn")
        if now >= self.report_at:
            self.report_at = Instant(now + Repeated.INTERVAL_NS)
            self._report()
            if linked := self._unheard():
                text = ONE_WAY.format(node=self._node, peers=", ".join(linked))
                note(self._node, "WARNING", text, event="one_way")

    def _report(self) -> None:
        """Log the frames dropped since the last report."""
        counters = self._scheduler.counters
        found = {name: counters[name] for name in DROPPED if name in counters}
        new = {name: times - self._dropped.get(name, 0) for name, times in found.items()}
        parts = [f"{times} {DROPPED[name]}" for name, times in new.items() if times]
        if not parts:
            return
        self._dropped = found
        text = f"dropped frames in the last {Repeated.INTERVAL_NS // 10**9} s: {', '.join(parts)}"
        fields = {name.replace(".", "_"): times for name, times in new.items() if times}
        level = "ERROR" if new.get(OTHER_GROUP) else "WARNING"
        note(self._node, level, text, event="frames_dropped", **fields)


SLOW_TURN = (
    "this process was busy or paused for {worst} ms{times}: it sent nothing meanwhile. Look for "
    "other load on this machine, for swapping, or for a container limited in processor time"
)

ONE_WAY = (
    "{node} is linked to {peers}, but gets nothing back: they answer at the address that their own "
    "configuration has for {node}. Either that address is not this node's, or another process runs "
    "as {node}: stop one of the two, or give it another id"
)

OTHER_GROUP = "wire.other_group"
"""The counter of frames of another group, which no healthy cluster has."""

DROPPED = {
    "wire.malformed": "that nobody can read: a port scan, or a program that is not fencelock",
    "wire.unnamed": "over connections without a name: what was left of them when their peers "
    "connected again, as they do while this node is paused, or a program that sets no routing id",
    "wire.oversized": "too large",
    "wire.wrong_version": "of another version of fencelock: see the rolling upgrade",
    "wire.wrong_cluster": "for another cluster: a client or node with a wrong cluster name",
    OTHER_GROUP: "of another group of this cluster: two were founded under its name (fencelock "
    "status says which nodes refuse each other)",
    "wire.spoofed_sender": "under a name that is not their sender's: two nodes or clients may "
    "have one id",
    "wire.misdirected": "for another node: addresses in a configuration are mixed up",
    "wire.muted": "of a sender that was muted for unreadable ones or too many",
    "wire.client_flooded": "of clients that sent more than this node could take",
    "wire.client_id_taken": "under the id of a client that another process uses",
    "wire.client_slow": "of or to clients that do not read their replies",
    "proxy.over_quota": "not frames: requests above a client's quota, which were refused",
    "wire.flood_closed": "of connections that were closed, since they sent too many",
    "wire.address_barred": "of addresses barred for a moment, since they sent several parts",
    "wire.held_closed": "of connections that were closed, since they took too much memory",
    "wire.address_full": "of connections above the quota of one address",
    "wire.connections_full": "of connections above the limit: too many clients, or their "
    "descriptors (ulimit -n)",
    "wire.queue_full": "to peers that do not read theirs",
    "host.inbox_full": "because too much waited",
}
"""Explanations of dropped frames, by the counter of each kind."""
