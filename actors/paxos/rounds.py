"""Which rounds are believed: a message raises them within bounds. Pure.

Without a bound one forged message could use up all rounds, and no ballot would ever be led again.
So a receiver heeds no round that is too far above those it knows. Honest members that are so far
apart, after forged messages or a very long absence, come together again in steps: a scout leads an
acceptor up (`Scout`), and a leader climbs to an acceptor that is above it (`Leader`).
"""

from __future__ import annotations

from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.message import Address, node_of
from fencelock.actors.paxos.config import View, leader_of
from fencelock.actors.paxos.handover_message import Release
from fencelock.actors.paxos.message import Accept, Ballot, Commit, Heartbeat, Preempted, Prepare

ROUND_MAX = (1 << 63) - 1
"""The highest round: what the wire can carry. It was ``1 << 62`` once, so a group whose journals
have a round that was forged then goes on above it."""

ROUND_JUMP_MAX = 1 << 24
"""How far one message may raise a round above those that its receiver knows.

An attempt to lead adds one, and takes a tenth of a second at least, so honest members are never so
far apart unless one was away for 19 days of nothing but elections. Whoever forges messages needs
2**39 of them, each of which waits for a disk, to use up all rounds.
"""

TOO_FAR = Observe("paxos.round_too_far")

Spoken = Prepare | Accept | Commit | Heartbeat | Release
"""What a leader, or who works for it, says."""


def refusal(
    node: str, view: View, sender: Address, event: Spoken, promised: Ballot, floor: int
) -> Effects:
    """Refuse what ``sender`` may not say, or says of a round that is too far; else nothing.

    A scout is told which round is known here, so that it can lead this acceptor up. The leader of
    the acceptor's own node is believed: nobody else can send under its name.

    Args:
        node: where the acceptor is.
        view: who is a member.
        sender: who says it.
        event: for which ballot.
        promised: the acceptor's promise.
        floor: a round that is known without a promise.

    """
    speaker, ballot = node_of(sender), event.ballot
    known = speaker in view.members and 1 <= ballot.round <= ROUND_MAX
    if not known or ballot.leader != leader_of(speaker):
        return (Observe("paxos.stranger_leads"),)
    highest = max(promised.round, floor)
    if ballot.round - highest <= ROUND_JUMP_MAX or speaker == node:
        return ()
    if not isinstance(event, Prepare):
        return (TOO_FAR,)
    return (Send(sender, Preempted(ballot=Ballot(highest, promised.leader))), TOO_FAR)
