"""A bug planted in members: they vote under any journal."""

from __future__ import annotations

from msgspec.structs import replace

from fencelock.actors.effect import Spawn
from fencelock.actors.paxos.acceptor import Acceptor
from fencelock.actors.paxos.leader import Leader


def votes_as_registered(spawn: Spawn) -> Spawn:
    """Let every node vote under the registered id of its member, whichever journal it has."""
    if issubclass(spawn.role, Leader):
        return replace(spawn, arguments={**spawn.arguments, "votes": True})
    if not issubclass(spawn.role, Acceptor):
        return spawn
    voter = spawn.arguments["config"].newest.registered[spawn.address]
    return replace(spawn, arguments={**spawn.arguments, "votes": True, "voter": voter})
