"""Which misfortunes each protocol promises to survive: it is judged under these and no others."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.actors.error import ConfigError
from holdfast.cluster.recipe import Settings
from holdfast.cluster.simulation.misfortune import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a protocol survives, and what a crash does to its holders."""

    survives: frozenset[Kind]
    only_server_crashes: bool = False
    """Whether only the first node by name, or the configured server, may crash. Clients then
    use the other nodes as gates."""
    hold_ends_with_gate: bool = False
    """Whether a lock granted through a node is free again when that node crashes. Its holder
    does not know yet; its fence is lower than any later one, which is what stops it."""


EVERYTHING = frozenset(Kind)
NO_CRASH = EVERYTHING - {Kind.CRASH, Kind.TAIL}


def promise_of(protocol: str, settings: Settings) -> Promise:
    """Return what ``protocol`` is judged under.

    `lamport` survives everything, as long as every node comes back. `central` survives
    everything but crashes; with a journal, also crashes of the server's node. `paxos`
    survives everything; what was held through a node that crashed is free again once
    the node is back, or its session has run out.

    Raises:
        ConfigError: there is no such protocol.

    """
    match protocol:
        case "lamport":
            return Promise(survives=EVERYTHING, hold_ends_with_gate=True)
        case "paxos":
            return Promise(survives=EVERYTHING, hold_ends_with_gate=True)
        case "central":
            if settings.central_journal:
                return Promise(survives=EVERYTHING, only_server_crashes=True)
            return Promise(survives=NO_CRASH)
        case _:
            raise ConfigError(
                f"protocol is {protocol!r}, one of central, lamport, paxos is allowed"
            )


def in_words(promise: Promise) -> str:
    """Say what is survived, in one line."""
    return ", ".join(kind.value for kind in Kind if kind in promise.survives)
