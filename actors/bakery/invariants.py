"""The invariants of `bakery`: what no run may ever break, by names in words.

Classes that keep one cite its name, and so do comments where it is asserted. The judges of
``verification/simulation/bakery_judge*.py`` check each from outside.
"""

from __future__ import annotations

from collections.abc import Mapping

INVARIANTS: Mapping[str, str] = {
    # Elections.
    "one-seating-an-epoch": (
        "an epoch has one seating: a member promises an epoch once, durably, and never a lower "
        "one; only under its registered journal"
    ),
    "seating-known-by-majority": (
        "a set of leaders serves only after a majority of the members, all voters, knows its "
        "seating durably, so no later proposal misses it"
    ),
    "merged-tables-complete": (
        "a leader serves an epoch with a table that has every lease that can still live under "
        "earlier ones, whether or not its own clock ended it"
    ),
    "no-lower-epoch": (
        "a leader accepts the steps of one epoch, its own, and none below the epoch for which it "
        "exported its table"
    ),
    "survivors-suffice": (
        "while a majority of five members or more lives, each with the copies of its life, new "
        "leaders learn every hold from it, and never begin with empty tables"
    ),
    "longest-lease-known": (
        "whichever members promise the next epoch, they report a bound for each lease that a "
        "client may rely on"
    ),
    "changes-stored": (
        "a change of the members is done once a majority of those after it has stored that it is "
        "in force"
    ),
    "one-change-at-a-time": (
        "the members change by one at a time, once majorities of those before and after know it "
        "durably; a node that was removed never counts again"
    ),
    "deaf-leaders-replaced": (
        "leaders that do not reach each other are replaced within seconds by members that do, and "
        "not again and again"
    ),
    # Tickets.
    "no-conflicting-votes": (
        "a leader never has votes for two tickets of a lock that conflict; a vote ends when its "
        "ticket drops or yields, or its lease ends"
    ),
    "answers-count-once": (
        "an answer counts once, for its sender, its request and its round, and only while that is "
        "in progress"
    ),
    "quorum-before-grant": (
        "`Locked` leaves only when a quorum voted in the current round, and trust has not run out"
    ),
    "kept-by-quorum": (
        "a grant, a renewal and a release count once a quorum of the keepers of the epoch knows "
        "them: the leaders, and the members that keep copies"
    ),
    "fences-rise": (
        "fences of tickets that conflict rise: (epoch, counter), the counter above every one that "
        "a quorum knows; none below one that was voted for is granted again"
    ),
    "lease-outlives-belief": (
        "a lease at a leader ends later than its client assumes: the client counts from when it "
        "sent the request"
    ),
    "dropped-stays-dropped": (
        "a request that its client dropped is not revived by a late copy of any step, nor by a "
        "table that missed the drop"
    ),
    "modes-kept": (
        "a request keeps its mode; a shared ticket gets no vote from a leader at which an "
        "exclusive one waits with a smaller turn"
    ),
    "one-reply": (
        "a proxy replies to a request once in its life, and remembers the request until then"
    ),
}
