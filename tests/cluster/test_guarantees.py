"""The guarantees of protocols, and how nodes and clients refuse what a protocol does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from support.real_nodes import ask, running_nodes

import fencelock
from fencelock.actors.api.barrier import AwaitBarrier
from fencelock.actors.api.changes import ReadChanges
from fencelock.actors.api.counter import AddToCounter
from fencelock.actors.api.election import ELECTION, Lead
from fencelock.actors.api.latch import AwaitLatch, CountDown
from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.map import GetEntry, PutEntry
from fencelock.actors.api.name import object_name
from fencelock.actors.api.pool import TakePermits
from fencelock.actors.api.request import Request
from fencelock.actors.api.rwlock import AcquireReadWrite
from fencelock.actors.api.semaphore import AcquirePermits
from fencelock.actors.error import UnsupportedError
from fencelock.cluster.guarantee import PROMISES, Guarantee, demand
from fencelock.cluster.node.node import Node


class Lacking(NamedTuple):
    """An object that some protocols do not have."""

    guarantee: Guarantee
    refusal: str
    requests: tuple[Request, ...]


LACKING: dict[str, Lacking] = {
    "semaphore": Lacking(
        Guarantee.SEMAPHORES, "paxos has it", (AcquirePermits(semaphore="a", permits=1),)
    ),
    "read/write lock": Lacking(
        Guarantee.RWLOCKS,
        "rwlocks .any number of owners.*bakery and paxos have it",
        (AcquireReadWrite(rwlock="a"),),
    ),
    "several locks": Lacking(
        Guarantee.LOCK_ALL, "lock all .several locks.*paxos has it", (AcquireAll(locks=("a", "b")),)
    ),
    "election": Lacking(
        Guarantee.ELECTIONS,
        "elections .an election has.*paxos has it",
        (Lead(election="a"), ReadChanges(lock=object_name(ELECTION, "a"))),
    ),
    "map": Lacking(
        Guarantee.MAPS,
        "does not promise maps .*; paxos has it",
        (PutEntry(map="a", entry_key="k", value=b""), GetEntry(map="a", entry_key="k")),
    ),
    "latch": Lacking(
        Guarantee.LATCHES,
        "paxos has it",
        (AwaitLatch(latch="a", count=1), CountDown(latch="a", count=1)),
    ),
    "barrier": Lacking(Guarantee.BARRIERS, "paxos has it", (AwaitBarrier(barrier="a", parties=2),)),
    "counter": Lacking(Guarantee.COUNTERS, "paxos has it", (AddToCounter(counter="a", amount=1),)),
    "pool": Lacking(Guarantee.POOLS, "paxos has it", (TakePermits(pool="a", size=1),)),
}


MAKERS: dict[str, Callable[[fencelock.Client], object]] = {
    "semaphore": lambda client: client.semaphore("a", 1),
    "read/write lock": lambda client: client.rwlock("a"),
    "several locks": lambda client: client.lock_all("a", "b"),
    "election": lambda client: client.election("a"),
    "map": lambda client: client.map("a"),
    "latch": lambda client: client.latch("a", 1),
    "barrier": lambda client: client.barrier("a", 2),
    "counter": lambda client: client.counter("a"),
    "pool": lambda client: client.semaphore("a", 1, session_aware=False),
}


@pytest.fixture(scope="module", params=["bakery", "central", "lamport"])
def nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Node]]:
    with running_nodes(tmp_path_factory.mktemp("nodes"), request.param) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def client(nodes: dict[str, Node]) -> Iterator[fencelock.Client]:
    with fencelock.connect([node.address for node in nodes.values()]) as client:
        yield client


@pytest.mark.parametrize("kind", LACKING)
def test_a_protocol_without_an_object_names_the_one_that_has_it(
    nodes: dict[str, Node], client: fencelock.Client, kind: str
) -> None:
    guarantee, refusal, requests = LACKING[kind]
    make = MAKERS[kind]
    if guarantee in PROMISES[client.protocol].guarantees:
        assert make(client)
        return
    with pytest.raises(UnsupportedError, match=f"^{client.protocol} .*{refusal}"):
        make(client)
    for request in requests:
        with pytest.raises(UnsupportedError, match=rf"{client.protocol} has no .*paxos ha"):
            ask(nodes["n1"], request)
        with pytest.raises(UnsupportedError, match=rf"{client.protocol} has no .*paxos ha"):
            client.proxy.ask(request)


@pytest.mark.parametrize("protocol", PROMISES)
def test_every_promise_may_be_demanded(protocol: str) -> None:
    for guarantee in PROMISES[protocol].guarantees:
        demand(protocol, guarantee)


@pytest.mark.parametrize("protocol", PROMISES)
def test_requests_that_the_protocol_does_not_promise_are_refused(protocol: str) -> None:
    for guarantee in set(Guarantee) - PROMISES[protocol].guarantees:
        with pytest.raises(UnsupportedError, match=f"{protocol} does not promise"):
            demand(protocol, guarantee)


def test_the_refusal_names_the_protocol_that_has_it() -> None:
    with pytest.raises(UnsupportedError) as caught:
        demand("central", Guarantee.FIFO)
    assert str(caught.value) == (
        "central does not promise fifo (first come, first served); lamport and paxos have it"
    )


def test_the_refusal_names_the_only_protocol_that_has_it() -> None:
    with pytest.raises(UnsupportedError) as caught:
        demand("lamport", Guarantee.REENTRANT)
    assert str(caught.value).endswith("; paxos has it")


def test_the_refusal_states_when_no_protocol_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(PROMISES, "paxos")
    with pytest.raises(UnsupportedError) as caught:
        demand("lamport", Guarantee.REENTRANT)
    assert str(caught.value).endswith("no protocol of this release has it")


def test_the_default_promises_all_but_what_bakery_alone_has_and_states_what_stops_it() -> None:
    only = {Guarantee.CLUSTER_EVENTS}
    assert PROMISES["paxos"].guarantees == set(Guarantee) - only
    assert "majority" in PROMISES["paxos"].does_not_survive


def test_an_unknown_protocol_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="protocol is 'raft', and must be one of bakery, central"):
        demand("raft", Guarantee.EXCLUSIVE)


def test_every_protocol_excludes_and_fences() -> None:
    for promise in PROMISES.values():
        assert {Guarantee.EXCLUSIVE, Guarantee.FENCED} <= promise.guarantees


def test_only_what_is_built_is_listed() -> None:
    assert list(PROMISES) == ["bakery", "central", "lamport", "paxos"]
