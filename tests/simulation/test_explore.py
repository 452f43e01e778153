from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from support.effects import HOST
from support.explore import Explorer
from support.turn_table import Picture

from fencelock.actors.central.message import Peek, Probe, Probed, ProbeServer
from fencelock.actors.effect import Effects, Retire, Send, Spawn, Wake
from fencelock.actors.message import Address, Event, Instant
from fencelock.actors.role import Host, Role

ASKER = Address("a/asker")
COUNTER = Address("b/counter")


class Asker(Role[Probed | ProbeServer]):
    """Asks once, or again and again until it is answered."""

    def __init__(self, address: Address, host: Host, *, persists: bool = True) -> None:
        super().__init__(address, host)
        self.persists = persists
        self.answered = False

    def begin(self, now: Instant) -> Effects:
        retry = (Wake(10, ProbeServer()),) if self.persists else ()
        return (Send(COUNTER, Probe()), *retry)

    def handle(self, sender: Address, event: Probed | ProbeServer, now: Instant) -> Effects:
        match event:
            case Probed():
                self.answered = True
                return ()
            case ProbeServer():
                return () if self.answered else self.begin(now)


class Counter(Role[Probe]):
    """Counts what it is asked, and may not be asked too often."""

    def __init__(self, address: Address, host: Host, *, most: int = 1_000) -> None:
        super().__init__(address, host)
        self.count = 0
        self.most = most

    def handle(self, sender: Address, event: Probe, now: Instant) -> Effects:
        self.count += 1
        assert self.count <= self.most
        return (Send(sender, Probed()),)


def explorer(*roles: Role[Any], **more: Any) -> Explorer:
    def at_most_three(picture: Picture) -> bool:
        return bool(picture[COUNTER]["count"] < 3)

    return Explorer(roles, choices={}, within=at_most_three, **more)


def is_answered(picture: Picture) -> bool:
    return bool(picture[ASKER]["answered"])


def test_every_situation_is_visited_once() -> None:
    """One message, repeated up to three times; its reply arrives before any repetition or not."""
    found = explorer(Asker(ASKER, HOST, persists=False), Counter(COUNTER, HOST)).explore(
        states_max=100
    )

    counts = 4
    heard = 3  # Not after 0, and not after 3: the search does not continue from there ...
    assert (found.states, found.complete) == (counts + heard, True)
    assert found.depth == 4  # ... but reached: three deliveries, and an answer between them.


def test_a_repeated_message_breaks_who_cannot_bear_it_by_the_shortest_way() -> None:
    found = explorer(Asker(ASKER, HOST, persists=False), Counter(COUNTER, HOST, most=1)).explore(
        states_max=100
    )

    assert found.violation is not None
    assert "b/counter broke" in found.violation.what
    assert found.violation.path == ("network  a/asker -> b/counter: Probe()",) * 2
    assert "  2 network  a/asker" in str(found.violation)


def test_a_judge_of_situations_and_a_judge_of_steps_end_the_search() -> None:
    def no_answers(picture: Picture) -> str:
        return "answered" if is_answered(picture) else ""

    def no_counting(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
        return "counted" if before != after else ""

    roles = (Asker(ASKER, HOST), Counter(COUNTER, HOST))
    by_situation = explorer(*roles, judges=(no_answers,)).explore(states_max=100)
    by_step = explorer(*roles, step_judges=(no_counting,)).explore(states_max=100)

    assert by_situation.violation is not None
    assert by_situation.violation.what == "answered"
    assert len(by_situation.violation.path) == 2
    assert by_step.violation is not None
    assert by_step.violation.what == "b/counter: counted"


def test_a_message_that_nobody_repeats_is_a_stall_and_a_timer_mends_it() -> None:
    for persists in (False, True):
        search = explorer(Asker(ASKER, HOST, persists=persists), Counter(COUNTER, HOST))
        search.explore(states_max=100)

        stall = search.stall(is_answered, {})

        assert (stall is None) == persists


def test_goals_are_found_with_the_fewest_steps_to_them() -> None:
    def counted_to_99(picture: Picture) -> bool:
        return bool(picture[COUNTER]["count"] == 99)

    goals = {"answered": is_answered, "never": counted_to_99}
    found = explorer(Asker(ASKER, HOST), Counter(COUNTER, HOST), goals=goals).explore(
        states_max=1_000
    )

    assert found.reached == {"answered": 2}


def test_bounds_end_a_search_that_is_then_not_complete() -> None:
    roles = (Asker(ASKER, HOST), Counter(COUNTER, HOST))
    by_depth = explorer(*roles).explore(states_max=1_000, depth_max=2)
    by_states = explorer(*roles).explore(states_max=3)

    assert (by_depth.depth, by_depth.complete) == (2, False)
    assert by_states.states >= 3
    assert not by_states.complete


def test_lost_kinds_never_arrive() -> None:
    found = explorer(Asker(ASKER, HOST), Counter(COUNTER, HOST), lost=(Probed,)).explore(
        states_max=100, depth_max=10
    )

    assert found.violation is None
    assert (
        "answered"
        not in explorer(
            Asker(ASKER, HOST),
            Counter(COUNTER, HOST),
            lost=(Probed, ProbeServer),
            goals={"answered": is_answered},
        )
        .explore(states_max=100)
        .reached
    )


class ExploredParent(Role[Probe | Peek]):
    """Spawns a child, talks to it in order, and retires it when told to."""

    child = Address("a/child")

    def begin(self, now: Instant) -> Effects:
        first, second = Peek(lock="first", query=1), Peek(lock="second", query=2)
        spawn = Spawn(self.child, Child, {"parent": self.address})
        return (spawn, Send(self.child, first), Send(self.child, second))

    def handle(self, sender: Address, event: Probe | Peek, now: Instant) -> Effects:
        match event:
            case Probe():
                return (Retire(self.child),)
            case Peek():
                return ()


class Child(Role[Peek | ProbeServer]):
    def __init__(self, address: Address, host: Host, *, parent: Address) -> None:
        super().__init__(address, host)
        self.parent = parent
        self.heard: list[str] = []

    def begin(self, now: Instant) -> Effects:
        return (Wake(1, ProbeServer()),)

    def handle(self, sender: Address, event: Peek | ProbeServer, now: Instant) -> Effects:
        if isinstance(event, Peek):
            self.heard.append(event.lock)
        return ()


def test_within_a_node_words_arrive_once_and_in_order_and_the_retired_hear_nothing() -> None:
    def in_order(picture: Picture) -> str:
        heard = picture.get(ExploredParent.child, {"heard": []})["heard"]
        return "" if heard == ["first", "second"][: len(heard)] else f"heard {heard}"

    def retire(state: Mapping[str, Any]) -> Sequence[Event]:
        return [Probe()]

    parent = Address("a/parent")
    found = Explorer(
        [ExploredParent(parent, HOST)],
        choices={parent: retire},
        judges=(in_order,),
        goals={
            "heard both": lambda p: len(p.get(ExploredParent.child, {"heard": ()})["heard"]) == 2,
            "gone": lambda p: ExploredParent.child not in p,
        },
        queue_max=2,
    ).explore(states_max=100)

    assert found.violation is None, found.violation
    assert found.complete
    assert found.reached == {"gone": 1, "heard both": 2}
