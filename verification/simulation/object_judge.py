"""The judge of the replies to users of objects: outcomes are those of the log, reads are fresh."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, ClassVar

from msgspec.structs import replace

from fencelock.actors.api.lock_message import Refused
from fencelock.actors.api.name import client_of, kind_of
from fencelock.actors.api.object_request import UpdateReply, UpdateRequest
from fencelock.actors.api.request import RequestKey, TableQuery, TableReply
from fencelock.actors.effect import Effects
from fencelock.actors.message import Address, address_of, node_of
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.verification.simulation.judge import LockJudge
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError, sent


class ObjectJudge(LockJudge):
    """Judges the locks of one run as `LockJudge` does, and the objects of one kind.

    - Replies: a user receives the outcome that its request has in the log, in a slot after all that
      any user knew when it was sent.
    - Once: the log has no more outcomes in a session than the user sent requests about the object,
      from one of its replies to the next.
    - Reads: see `TableReplay.judge_read`.

    A user has one request about such objects at a time.
    """

    kind: ClassVar[str]
    """The kind of the objects."""

    query: ClassVar[type[TableQuery] | None] = None
    """The type of the reads that are judged."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.asked: dict[Address, tuple[UpdateRequest | TableQuery, int]] = {}
        """The request of each user in flight, and the slot that was known when it was sent."""
        self.sent: Counter[tuple[Address, str]] = Counter()
        """The number of requests of each user and object since its last reply."""
        self.noted: set[RequestKey] = set()
        """The requests whose outcome is in the log."""
        self.outcomes: dict[tuple[Address, str], list[tuple[int, UpdateReply]]] = defaultdict(list)
        """The outcomes in the log, with their slots, that their users have not received."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        event, user = delivered.event, delivered.to
        if isinstance(event, SlotOutcomes):
            for one in event.outcomes:
                if isinstance(one, UpdateReply) and one.key not in self.noted:
                    self._note(one, event.slot)
        if user not in self.contenders:
            super().handled(delivered, effects)
            return
        match event:
            case UpdateReply():
                self._hear(user, event)
            case TableReply() if self.query in event.REPLIES_TO:
                self._read(user, event)
            case Refused() if kind_of(event.lock) == self.kind:
                self.asked.pop(user, None)
            case _:
                super().handled(delivered, effects)
        for request in sent(effects, UpdateRequest):
            self.asked[user] = request, self.replay.floor
            self.sent[user, request.lock] += 1
        for query in sent(effects, self.query) if self.query else ():
            self.asked[user] = query, self.replay.floor

    def left(self, client: str) -> None:
        """End all waits and holds of ``client``, whose requests get no reply any more."""
        super().left(client)
        for user in [user for user in self.asked if node_of(user) == client]:
            del self.asked[user]

    def values(self, query: Any, read: Any) -> dict[tuple[str, str], Any]:
        """Return the values that a read returned, by object and key."""
        raise NotImplementedError

    def _note(self, outcome: UpdateReply, slot: int) -> None:
        """Note an outcome in the log. Another one for the same request is a repetition."""
        user = address_of(client_of(outcome.session), outcome.owner)
        if user in self.contenders:
            self.noted.add(outcome.key)
            self.outcomes[user, outcome.lock].append((slot, outcome))

    def _hear(self, user: Address, reply: UpdateReply) -> None:
        request, floor = self.asked.pop(user, (None, 0))
        outcomes = self.outcomes.pop((user, reply.lock), [])
        sent = self.sent.pop((user, reply.lock), 0)
        found = [(slot, one) for slot, one in outcomes if _content(one) == _content(reply)]
        if request is None or not found or found[-1][0] < floor:
            text = f"replies: {user} received {reply!r} to {request!r}, and the log has {outcomes}"
            raise ViolationError(f"{text}; {floor} was known")
        slot, outcome = found[-1]
        same = [one for _, one in outcomes if one.session == outcome.session]
        if len(same) > sent:
            raise ViolationError(f"once: {user} sent {sent} requests, and the log has {same}")
        self.replay.knows(slot)

    def _read(self, user: Address, read: TableReply) -> None:
        query, floor = self.asked.pop(user, (None, 0))
        if query is None:
            raise ViolationError(f"reads: {user} asked for nothing, and read {read!r}")
        self.replay.judge_read(user, floor, read, self.values(query, read))


def _content(reply: UpdateReply) -> UpdateReply:
    """Return a reply without its request, which clients number in another way than users."""
    return replace(reply, session="", owner="", request=0)
