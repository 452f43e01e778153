"""The guarantees of each protocol, and its limits: one table for the CLI and for refusals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fencelock.actors.error import UnsupportedError


class Guarantee(Enum):
    """A property that an application may rely on. The value defines it, in one sentence."""

    EXCLUSIVE = "at most one owner holds a lock at any time"
    FENCED = "every grant carries a number above all earlier grants of the same lock"
    FIFO = "first come, first served"
    REENTRANT = "an owner may acquire a lock it holds once more, and releases it as often"
    SEMAPHORES = "all clients together hold at most as many permits as the semaphore has"
    RWLOCKS = "any number of owners hold it to read, or one owner holds it to write"
    LOCK_ALL = "several locks are granted in one step, or none of them"
    ELECTIONS = "an election has at most one leader, and clients can watch each change of leader"
    MAPS = "a map of keys to bytes, with versions, expiry, and writes guarded by a fence"
    LATCHES = (
        "callers that wait for a latch pass once its count is 0, and a repeated request counts once"
    )
    BARRIERS = "all parties of a barrier pass together, each with its own index, or none of them"
    COUNTERS = "counters take a repeated change once, and a fence can guard each change"
    POOLS = "permits that outlive sessions: at most as many are taken as there are, each once"
    REDIS = "clients of Redis hold locks through a door, fenced, and in one queue with all others"
    HANDOVERS = "a lock goes to another client by a token, once, and nobody gets it in between"
    RETAINED = "a client may keep a lock for its next owner, and gives it back when others wait"
    SESSIONS = "the cluster notices a dead client, and ends its holds and waits"
    EXACTLY_ONCE = "a repeated request takes effect once and gets the same reply"
    LINEARIZABLE = "every reply, also to a read, is true at one instant between request and reply"
    BOUNDED_READS = "a node replies to a read by itself if it can prove the age of its state"
    SURVIVES_UNKIND_NETWORK = "messages that are lost, repeated, reordered or late do no harm"
    DEADLINES = "a hold has a duration; then its owner has a grace to release or renew it"
    CLUSTER_EVENTS = "a client is notified when the cluster goes up or down, or becomes ready"
    SURVIVES_LEADER_CRASH = "locks are granted again soon after a node that leads is lost"
    SURVIVES_MINORITY_CRASH = "locks are granted while a majority of the nodes is up and connected"
    SURVIVES_HOLDER_CRASH = "a lock whose holder is dead is granted to the next without an operator"

    @property
    def title(self) -> str:
        """The name as people write it: ``survives holder crash``."""
        return self.name.lower().replace("_", " ")

    @property
    def word(self) -> str:
        """The name as an argument of a command: ``lock-all``."""
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True, slots=True)
class ProtocolGuarantees:
    """The guarantees of one protocol, and its price in one line."""

    guarantees: frozenset[Guarantee]
    does_not_survive: str
    """The faults that stop it, as a sentence that ends ``fencelock serve``'s greeting."""
    nodes_min: int
    why_nodes_min: str = ""


PROMISES: dict[str, ProtocolGuarantees] = {
    "bakery": ProtocolGuarantees(
        guarantees=frozenset(
            {
                Guarantee.EXCLUSIVE,
                Guarantee.FENCED,
                Guarantee.RWLOCKS,
                Guarantee.DEADLINES,
                Guarantee.CLUSTER_EVENTS,
                Guarantee.SURVIVES_UNKIND_NETWORK,
                Guarantee.SURVIVES_LEADER_CRASH,
                Guarantee.SURVIVES_HOLDER_CRASH,
            }
        ),
        does_not_survive=(
            "a majority of the nodes must be up and connected; when two leaders are lost at once "
            "nobody is granted anything until every duration and grace is over, and who held "
            "what is forgotten"
        ),
        nodes_min=1,
    ),
    "central": ProtocolGuarantees(
        guarantees=frozenset(
            {Guarantee.EXCLUSIVE, Guarantee.FENCED, Guarantee.SURVIVES_UNKIND_NETWORK}
        ),
        does_not_survive=(
            "a crashed server stops every lock and, without a journal, forgets who holds what; "
            "a lock whose client died stays held until an operator releases it"
        ),
        nodes_min=1,
    ),
    "lamport": ProtocolGuarantees(
        guarantees=frozenset(
            {
                Guarantee.EXCLUSIVE,
                Guarantee.FENCED,
                Guarantee.FIFO,
                Guarantee.SURVIVES_UNKIND_NETWORK,
            }
        ),
        does_not_survive=(
            "every node must be up: while one is down or cut off, nobody is granted anything new; "
            "a lock whose holder crashed stays held"
        ),
        nodes_min=2,
        why_nodes_min="its fences live in the other nodes' clocks: a restart learns them there",
    ),
    "paxos": ProtocolGuarantees(
        guarantees=frozenset(Guarantee) - {Guarantee.CLUSTER_EVENTS},
        does_not_survive=(
            "a majority of the nodes must be up and connected; what a dead client held stays "
            "taken until its session's time is over"
        ),
        nodes_min=1,
    ),
}
"""The protocols of this release, by the name the configuration uses."""


VOTING = frozenset({"bakery", "paxos"})
"""The protocols whose members vote and change. An operator founds their group, their journals hold
promises to a majority, and all their nodes know the same locks."""


def promises(protocol: str, guarantee: Guarantee) -> bool:
    """Return whether ``protocol``, one of `PROMISES`, promises ``guarantee``."""
    return guarantee in PROMISES[protocol].guarantees


def demand(protocol: str, guarantee: Guarantee) -> None:
    """Refuse unless ``protocol`` promises ``guarantee``; the text names the protocols that do."""
    promise = PROMISES.get(protocol)
    if promise is None:
        raise ValueError(f"protocol is {protocol!r}, and must be one of {', '.join(PROMISES)}")
    if guarantee in promise.guarantees:
        return
    able = [name for name, other in PROMISES.items() if guarantee in other.guarantees]
    verb = "have" if len(able) > 1 else "has"
    advice = f"{' and '.join(able)} {verb} it" if able else "no protocol of this release has it"
    raise UnsupportedError(
        f"{protocol} does not promise {guarantee.title} ({guarantee.value}); {advice}"
    )
