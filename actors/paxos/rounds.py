"""Limits on rounds: a message can raise the known round only so far. Pure.

Without a limit one forged message could use up all rounds, and no ballot would ever be led
again. So a receiver ignores a round too far above those it knows. If honest members are that
far apart, after forged messages or a very long absence, they meet again in steps: a scout leads
an acceptor up (`Scout`), and a leader climbs to an acceptor that is above it (`Leader`).
"""

from __future__ import annotations

from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.message import Address, node_of
from fencelock.actors.paxos.config import View, leader_of
from fencelock.actors.paxos.handover_message import Release
from fencelock.actors.paxos.message import Accept, Ballot, Commit, Heartbeat, Preempted, Prepare

ROUND_MAX = (1 << 63) - 1
"""The highest round that the wire can carry. It was ``1 << 62`` once; a group whose journals
contain a forged round of that height continues above it."""

ROUND_JUMP_MAX = 1 << 24
"""Maximum distance by which one message may raise a round above those its receiver knows.

An attempt to lead adds one, and takes at least a tenth of a second. So honest members are never
that far apart, unless one was away for 19 days of nothing but elections. A forger needs 2**39
messages, each of which waits for a disk, to use up all rounds.
"""

TOO_FAR = Observe("paxos.round_too_far")

Spoken = Prepare | Accept | Commit | Heartbeat | Release
"""Messages that a leader, its scout or its commander sends."""


def refusal(
    node: str, view: View, sender: Address, event: Spoken, promised: Ballot, floor: int
) -> Effects:
    """Refuse what ``sender`` may not send, or sends for a round too far away; else nothing.

    A scout is sent the round known here, so that it can lead this acceptor up. The leader of the
    acceptor's own node is trusted: no other process can send under its name.

    Args:
        node: the acceptor's node.
        view: the membership.
        sender: the address that sent the event.
        event: the message, with its ballot.
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
