"""The Redis door of a running node: the role, its sockets, and the keys of its clients."""

from __future__ import annotations

from collections.abc import Callable

from fencelock import __version__
from fencelock.actors.error import ConfigError
from fencelock.actors.message import Address, Local, address_of
from fencelock.actors.proxy.access import RightsChanged
from fencelock.actors.redis.door import RedisDoor
from fencelock.actors.redis.event import Opened, Received, Transmit
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.scheduler import INBOX_MAX, Scheduler
from fencelock.cluster.keys import KeyList, Passwords, read_list
from fencelock.cluster.node.config import Config
from fencelock.transport.descriptors import raise_limit
from fencelock.transport.hub import SocketHub
from fencelock.transport.stream import StreamServer, streams_max

PROTOCOL = "paxos"
"""The protocol that has the door: values and deadlines are in its log."""


class RedisDoorServer:
    """Clients of Redis at a node, from now on, at the node's address for them."""

    def __init__(self, node: str, config: Config, dispatcher: Dispatcher, hub: SocketHub) -> None:
        if config.protocol != PROTOCOL:
            raise ConfigError(
                f'redis.address: protocol "{config.protocol}" is not usable: clients of Redis need '
                f'"{PROTOCOL}"'
            )
        known = None if config.keys is None else read_list(config.keys)
        self._passwords = None if known is None else Passwords(known)
        self._role, sockets = address_of(node, "redis"), address_of(node, "redis-sockets")
        quotas = config.settings.quotas

        door = RedisDoor(
            self._role,
            dispatcher,
            node=node,
            sockets=sockets,
            version=__version__,
            rights=None if known is None else known.rights,
            verify=self._passwords,
        )

        def listen(scheduler: Scheduler) -> StreamServer:
            counters = scheduler.counters

            def count(name: str, times: int) -> None:
                counters[name] += times

            streams = StreamServer(
                config.redis[node],
                post=_post_to(scheduler, self._role),
                count=count,
                fault=scheduler.note_fault,
                connections=streams_max(raise_limit()),
                connections_each=quotas.connections,
                unread_bytes=quotas.unread_kib << 10,
            )

            def send(event: object) -> None:
                assert isinstance(event, Transmit)
                streams.transmit(event)

            dispatcher.listen("redis-sockets", send)
            hub.attach(streams)
            return streams

        dispatcher.add(door)  # First: a connection without its role would be closed.
        self.address: str = dispatcher.read(listen, None).address

    def replace_keys(self, scheduler: Scheduler, known: KeyList) -> None:
        """Use another list of keys; on the dispatcher's thread."""
        role_slot = scheduler.roles.get(self._role)
        if self._passwords is not None and role_slot is not None:
            self._passwords.known = known
            scheduler.post(role_slot, scheduler.here, RightsChanged(rights=known.rights))


def _post_to(scheduler: Scheduler, role: Address) -> Callable[[Local], bool]:
    """Return a function that delivers an event to the door, unless too much waits."""

    def post(event: Local) -> bool:
        role_slot = scheduler.roles.get(role)
        if role_slot is None:
            return False
        if isinstance(event, Received | Opened) and len(scheduler.ready) >= INBOX_MAX:
            scheduler.counters["host.inbox_full"] += 1
            return False
        scheduler.post(role_slot, scheduler.here, event)
        return True

    return post
